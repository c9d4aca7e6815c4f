//! Learning from reports: the models, and the gradient noise for AdaScale.

use std::collections::BTreeMap;

use evenstep_protocol::{LearningRateRule, WorkerId, WorkerReport};

use super::models::ReportContext;
use super::report::{by_iteration, gradient_norms};
use super::state::JobState;
use super::worker::ProfilePart;
use crate::curve::PointsError;
use crate::learning_rate::LearningRateError;

/// A part of the reports that could not be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Skipped {
    /// The profile of a worker.
    #[error("cannot compute a batch curve from the profile of worker {worker}: {source}")]
    Profile {
        /// The worker.
        worker: WorkerId,
        /// The reason.
        source: PointsError,
    },
    /// The gradients of an iteration.
    #[error("cannot use the gradients of iteration {iteration}: {source}")]
    Gradients {
        /// The iteration.
        iteration: u64,
        /// The reason.
        source: LearningRateError,
    },
}

impl JobState {
    /// Learns from new reports. The result does not depend on how reports are grouped into calls.
    pub fn observe(&mut self, reports: &[WorkerReport]) -> Vec<Skipped> {
        if reports.is_empty() {
            return Vec::new();
        }
        let mut skipped = self.replay(reports);
        if self.spec.rule == LearningRateRule::Adascale {
            self.observe_gradients(reports, &mut skipped);
        }
        skipped
    }

    /// Learns from reports that the stored learning-rate rule has already processed.
    pub fn replay(&mut self, reports: &[WorkerReport]) -> Vec<Skipped> {
        let micro_batches = self.micro_batches();
        let earliest = reports.iter().map(|report| report.iteration).min().unwrap_or(u64::MAX);
        let profile_steps = self.profile(earliest).len() as u64;
        let failed = self.models.learn(reports, |report| ReportContext {
            micro_batch: micro_batches.get(&report.worker).copied(),
            profile: match profile_steps.checked_sub(report.iteration) {
                None | Some(0) => ProfilePart::Outside,
                Some(1) => ProfilePart::Last,
                Some(_) => ProfilePart::Within,
            },
        });
        failed.into_iter().map(|(worker, source)| Skipped::Profile { worker, source }).collect()
    }

    /// Returns the micro-batch of each worker, if the job accumulates gradients.
    fn micro_batches(&self) -> BTreeMap<WorkerId, u64> {
        if !self.spec.accumulation {
            return BTreeMap::new();
        }
        let micro_batch = |id: &WorkerId| Some((id.clone(), self.bounds(id).micro_batch?));
        self.workers.keys().filter_map(micro_batch).collect()
    }

    /// Updates AdaScale. Reports that arrive late or have no gradient norms are ignored.
    fn observe_gradients(&mut self, reports: &[WorkerReport], skipped: &mut Vec<Skipped>) {
        for reports in by_iteration(reports) {
            let Some(iteration) = reports.first().map(|report| report.iteration) else { continue };
            let Some(norms) = gradient_norms(reports) else { continue };
            if let Err(source) = self.learning_rate.gradients(iteration, &norms) {
                skipped.push(Skipped::Gradients { iteration, source });
            }
        }
    }
}

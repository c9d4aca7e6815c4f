//! Learning from reports: the models, and the gradients for AdaScale.

use std::collections::BTreeMap;

use evenstep_protocol::{LearningRateRule, WorkerId, WorkerReport};

use super::models::Circumstances;
use super::report::{by_iteration, gradient_norms};
use super::state::JobState;
use super::worker::ProfilePart;
use crate::curve::BadPoints;
use crate::learning_rate::LearningRateError;

/// A part of the reports from which nothing was learned.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Skipped {
    /// The profile of a worker.
    #[error("the profile of worker {worker} makes no batch curve: {source}")]
    Profile {
        /// The worker.
        worker: WorkerId,
        /// Why.
        source: BadPoints,
    },
    /// The gradients of an iteration.
    #[error("the gradients of iteration {iteration} teach nothing: {source}")]
    Gradients {
        /// The iteration.
        iteration: u64,
        /// Why.
        source: LearningRateError,
    },
}

impl JobState {
    /// Learns from reports that were not seen before. What is learned does not depend on how reports are grouped into calls.
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

    /// Learns from reports that the stored learning-rate rule has seen already.
    pub fn replay(&mut self, reports: &[WorkerReport]) -> Vec<Skipped> {
        let micro_batches = self.micro_batches();
        let earliest = reports.iter().map(|report| report.iteration).min().unwrap_or(u64::MAX);
        let profile_steps = self.profile(earliest).len() as u64;
        let failed = self.models.learn(reports, |report| Circumstances {
            micro_batch: micro_batches.get(&report.worker).copied(),
            profile: match profile_steps.checked_sub(report.iteration) {
                None | Some(0) => ProfilePart::Outside,
                Some(1) => ProfilePart::Last,
                Some(_) => ProfilePart::Within,
            },
        });
        failed.into_iter().map(|(worker, source)| Skipped::Profile { worker, source }).collect()
    }

    /// The most that each worker computes at once; only if the job accumulates gradients.
    fn micro_batches(&self) -> BTreeMap<WorkerId, u64> {
        if !self.spec.accumulation {
            return BTreeMap::new();
        }
        let micro_batch = |id: &WorkerId| Some((id.clone(), self.bounds(id).micro_batch?));
        self.workers.keys().filter_map(micro_batch).collect()
    }

    /// Lets AdaScale learn. Reports that arrive late, or carry no gradient norms, teach nothing.
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

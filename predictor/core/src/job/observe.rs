//! Learning from reports: the models, and the gradient noise for AdaScale.

use evenstep_protocol::{AllocateResponse, LearningRateRule, WorkerId, WorkerReport};

use super::plans::PlannedWork;
use super::state::JobState;
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
    /// Learns from new reports. The result does not depend on how reports are grouped into calls, nor on their order
    /// in a call; see [`super::open`].
    pub fn observe(&mut self, reports: &[WorkerReport]) -> Vec<Skipped> {
        let learned = self.models_mut().learn(reports);
        let mut skipped = profiles(learned.failed);
        if self.spec.rule == LearningRateRule::Adascale {
            for (iteration, norms) in learned.gradients {
                if let Err(source) = self.learning_rate.gradients(iteration, &norms) {
                    skipped.push(Skipped::Gradients { iteration, source });
                }
            }
        }
        skipped
    }

    /// Learns from reports that the stored learning-rate rule has already processed.
    pub fn replay(&mut self, reports: &[WorkerReport]) -> Vec<Skipped> {
        profiles(self.models_mut().learn(reports).failed)
    }

    /// Restores the models' knowledge of an allocation that was planned before a restart. Call it in order of
    /// iterations, before the reports of these iterations are replayed.
    pub fn restore_plan(&mut self, answer: &AllocateResponse) {
        let work = self.planned_work(answer);
        self.models_mut().restore_plan(answer.iteration, work);
    }

    /// Returns the part of an allocation that determines how reports are learned.
    pub(super) fn planned_work(&self, answer: &AllocateResponse) -> PlannedWork {
        PlannedWork::new(answer, |worker, generation| self.workers.get(worker)?.joined(generation))
    }
}

fn profiles(failed: Vec<(WorkerId, PointsError)>) -> Vec<Skipped> {
    failed.into_iter().map(|(worker, source)| Skipped::Profile { worker, source }).collect()
}

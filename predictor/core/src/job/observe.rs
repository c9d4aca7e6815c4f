//! Learning from reports: the models, and the gradient noise for AdaScale.

use evenstep_protocol::{AllocateResponse, LearningRateRule, WorkerReport};

use super::decide::even_of;
use super::even_time::EvenTime;
use super::plans::{PlannedWork, is_probe};
use super::state::JobState;
use crate::learning_rate::LearningRateError;
use crate::parallel;

/// A part of the reports that could not be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Skipped {
    /// The gradients of an iteration.
    #[error("cannot use the gradients of iteration {iteration}: {source}")]
    Gradients {
        /// The iteration.
        iteration: u64,
        /// The reason.
        source: LearningRateError,
    },
}

/// Results of reports that the models do not keep.
#[derive(Debug, Default, PartialEq)]
pub struct Observed {
    /// The parts that could not be used.
    pub skipped: Vec<Skipped>,
    /// The time with even shares of each iteration that was learned, if it is known.
    pub even: Vec<EvenTime>,
}

impl JobState {
    /// Learns from new reports. The models do not depend on how reports are grouped into calls, nor on their order in a
    /// call; see `job::open`. The times with even shares are estimated by the models at the end of the call.
    pub fn observe(&mut self, reports: &[WorkerReport]) -> Observed {
        let learned = self.learn(reports);
        let mut skipped = Vec::new();
        if self.spec.rule == LearningRateRule::Adascale {
            for (iteration, norms) in learned.gradients {
                if let Err(source) = self.learning_rate.gradients(iteration, &norms) {
                    skipped.push(Skipped::Gradients { iteration, source });
                }
            }
        }
        let even = learned.closed.iter().filter_map(|closed| self.even_time(closed)).collect();
        Observed { skipped, even }
    }

    /// Learns from reports that the stored learning-rate rule has already processed.
    pub fn replay(&mut self, reports: &[WorkerReport]) {
        self.learn(reports);
    }

    /// Restores the models' knowledge of an allocation that was planned before a restart. Call it and [`Self::replay`] in the
    /// order of the first time, so that they have the same results.
    pub fn restore_plan(&mut self, answer: &AllocateResponse) {
        if answer.iteration < self.models.carried_out() {
            return;
        }
        let work = self.planned_work(answer, self.even_of(answer).as_deref());
        self.models_mut().plan(answer.iteration, work);
        if is_probe(answer) {
            self.models_mut().count_probe(answer.iteration);
        }
    }

    /// Returns the part of an allocation that determines how reports are learned. `even` are the even shares by rank, if they are
    /// known.
    pub(super) fn planned_work(&self, answer: &AllocateResponse, even: Option<&[u64]>) -> PlannedWork {
        PlannedWork::new(answer, even, |worker, generation| self.workers.get(worker)?.joined(generation))
    }

    /// Returns the even shares of a full allocation by the bounds of today.
    fn even_of(&self, answer: &AllocateResponse) -> Option<Vec<u64>> {
        if answer.global_batch < self.global_batch() {
            return None;
        }
        let bounds = parallel::map(&answer.allocations, |share| self.bounds(&share.worker));
        even_of(&self.spec, bounds, answer.global_batch).ok()
    }
}

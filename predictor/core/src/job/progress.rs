//! How far a run has come without the predictor.
//!
//! A report needs an allocation: a report or a request far beyond the iterations that were planned comes from a wrong
//! counter, or from a run that went on while the predictor was unreachable. In a run, an iteration ends for all workers
//! together. So the run has come as far as all workers with samples say, and one worker alone proves nothing.

use std::collections::BTreeMap;

use evenstep_protocol::{WorkerId, WorkerReport};

use super::state::JobState;

/// What each worker said since the latest allocation: the iteration after the newest that it reported; `None` if it joined
/// again and has reported none since. A run that starts may begin at any iteration.
pub type Said = BTreeMap<WorkerId, Option<u64>>;

impl JobState {
    /// Records that a worker joined, perhaps again.
    pub fn hear_join(&mut self, worker: &WorkerId) {
        self.said.insert(worker.clone(), None);
    }

    /// Records the iterations of reports, and returns the first iteration that has no allocation and that the run has not
    /// finished: `u64::MAX` if the run starts, since it may begin anywhere.
    pub fn reached(&mut self, reports: &[WorkerReport]) -> u64 {
        let next = self.next_iteration;
        let mut new = Said::new();
        for report in reports.iter().filter(|report| report.iteration >= next) {
            let said = new.entry(report.worker.clone()).or_default();
            *said = (*said).max(Some(report.iteration.saturating_add(1)));
        }
        // What a worker says now replaces what it said before.
        self.said.append(&mut new);
        let is_new = self.last_allocation.is_none() && next == 0;
        let of = |worker: &WorkerId| self.said.get(worker).copied().or(is_new.then_some(None));
        let shares = self.last_allocation.iter().flat_map(|last| &last.allocations);
        let with_samples = shares
            .filter(|share| share.local_batch > 0 || share.pool.is_some())
            .map(|share| &share.worker)
            .filter(|worker| self.members.is_live(worker));
        let mut said: Vec<Option<Option<u64>>> = with_samples.map(of).collect();
        if said.is_empty() {
            said = self.members.live().map(of).collect();
        }
        let said: Option<Vec<Option<u64>>> = said.into_iter().collect();
        let Some(said) = said else { return next };
        match (said.iter().min(), said.iter().max()) {
            (_, Some(None)) => u64::MAX,
            (Some(Some(first)), _) => next.max(*first),
            _ => next,
        }
    }
}

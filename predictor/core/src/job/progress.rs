//! The iterations that a run finished while the predictor was unreachable.
//!
//! A report needs an allocation: a report or a request far beyond the planned iterations comes from a wrong counter, or
//! from a run that continued while the predictor was unreachable. In a run, an iteration ends for all workers together. So
//! the run has reached the iteration that all workers with samples have reported. A report of one worker alone proves
//! nothing.

use std::collections::BTreeMap;

use evenstep_protocol::{WorkerId, WorkerReport};

use super::state::JobState;

/// The iteration after the newest that each worker reported beyond the latest allocation; `None` if it joined again since
/// then and has reported none. A run that starts may begin at any iteration.
pub type Progress = BTreeMap<WorkerId, Option<u64>>;

impl JobState {
    /// Records that a worker joined, perhaps again.
    pub fn note_join(&mut self, worker: &WorkerId) {
        self.progress.insert(worker.clone(), None);
    }

    /// Records the iterations of reports. Returns the first iteration that has no allocation and that some worker with
    /// samples has not reported; `u64::MAX` if the run starts, since it may begin at any iteration.
    pub fn reached(&mut self, reports: &[WorkerReport]) -> u64 {
        let next = self.next_iteration;
        let mut new = Progress::new();
        for report in reports.iter().filter(|report| report.iteration >= next) {
            let newest = new.entry(report.worker.clone()).or_default();
            *newest = (*newest).max(Some(report.iteration.saturating_add(1)));
        }
        // The newest report of a worker in this request replaces that of earlier requests.
        self.progress.append(&mut new);
        let is_new = self.last_allocation.is_none() && next == 0;
        let of = |worker: &WorkerId| self.progress.get(worker).copied().or(is_new.then_some(None));
        let shares = self.last_allocation.iter().flat_map(|last| &last.allocations);
        let with_samples = shares
            .filter(|share| share.local_batch > 0 || share.pool.is_some())
            .map(|share| &share.worker)
            .filter(|worker| self.members.is_live(worker));
        let mut progress: Vec<Option<Option<u64>>> = with_samples.map(of).collect();
        if progress.is_empty() {
            progress = self.members.live().map(of).collect();
        }
        let Some(progress) = progress.into_iter().collect::<Option<Vec<Option<u64>>>>() else { return next };
        match (progress.iter().min(), progress.iter().max()) {
            (_, Some(None)) => u64::MAX,
            (Some(Some(first)), _) => next.max(*first),
            _ => next,
        }
    }
}

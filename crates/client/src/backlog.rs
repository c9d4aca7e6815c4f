//! Reports that wait for delivery.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenstep_protocol::WorkerReport;

/// Default of [`BacklogLimits::iterations`].
pub const ITERATIONS_MAX: usize = 256;

/// Default of [`BacklogLimits::reports_per_request`].
pub const REPORTS_PER_REQUEST_MAX: usize = 256;

/// Bounds of a [`Backlog`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BacklogLimits {
    /// Maximum number of iterations whose reports are kept. The oldest are dropped first and counted as lost.
    pub iterations: usize,
    /// Maximum number of reports in one request. The reports of one iteration are never split over requests.
    pub reports_per_request: usize,
}

impl Default for BacklogLimits {
    fn default() -> Self {
        Self { iterations: ITERATIONS_MAX, reports_per_request: REPORTS_PER_REQUEST_MAX }
    }
}

/// Queue of the reports of iterations, oldest first. Clones share the queue.
#[derive(Debug, Clone, Default)]
pub struct Backlog(Arc<Mutex<Queue>>);

#[derive(Debug, Default)]
struct Queue {
    limits: BacklogLimits,
    iterations: VecDeque<Vec<WorkerReport>>,
    done: u64,
    lost: u64,
}

impl Backlog {
    /// Creates an empty backlog with these bounds.
    pub fn new(limits: BacklogLimits) -> Self {
        Self(Arc::new(Mutex::new(Queue { limits, ..Queue::default() })))
    }

    /// Adds the reports of iteration `iteration`, which is done.
    pub fn push(&self, iteration: u64, reports: Vec<WorkerReport>) {
        let mut queue = self.lock();
        queue.done = iteration + 1;
        queue.iterations.push_back(reports);
        queue.shed();
    }

    /// Removes and returns the oldest reports for a request for iteration `requested`: only reports of
    /// earlier iterations.
    pub fn take(&self, requested: u64) -> Vec<Vec<WorkerReport>> {
        let mut queue = self.lock();
        let mut taken: Vec<Vec<WorkerReport>> = Vec::new();
        let mut reports = 0;
        while let Some(next) = queue.iterations.front()
            && next.iter().all(|report| report.iteration < requested)
            && (taken.is_empty() || reports + next.len() <= queue.limits.reports_per_request)
        {
            reports += next.len();
            taken.extend(queue.iterations.pop_front());
        }
        taken
    }

    /// Returns undelivered reports to the queue.
    pub fn put_back(&self, taken: Vec<Vec<WorkerReport>>) {
        let mut queue = self.lock();
        for iteration in taken.into_iter().rev() {
            queue.iterations.push_front(iteration);
        }
        queue.shed();
    }

    /// Counts reports that will never be delivered.
    pub fn count_lost(&self, reports: usize) {
        self.lock().lost += reports as u64;
    }

    /// Returns the number of reports that were never delivered.
    pub fn lost(&self) -> u64 {
        self.lock().lost
    }

    /// Returns the number of finished iterations.
    pub fn done(&self) -> u64 {
        self.lock().done
    }

    /// Returns whether no report waits.
    pub fn is_empty(&self) -> bool {
        self.lock().iterations.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Every change leaves the queue valid, so a panic of another thread does no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn shed(&mut self) {
        while self.iterations.len() > self.limits.iterations {
            self.lost += self.iterations.pop_front().map_or(0, |reports| reports.len() as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::WorkerId;

    use super::*;

    fn report(iteration: u64) -> WorkerReport {
        WorkerReport::new(WorkerId::new("node/0").unwrap(), iteration, 1, 0.1)
    }

    #[test]
    fn order_is_kept_requests_are_bounded_and_what_falls_out_is_counted() {
        let backlog = Backlog::default();
        for iteration in 0..300 {
            backlog.push(iteration, vec![report(iteration); 2]);
        }
        assert_eq!((backlog.lost(), backlog.done()), (88, 300));
        let taken = backlog.take(301);
        assert_eq!((taken.len(), taken[0][0].iteration), (REPORTS_PER_REQUEST_MAX / 2, 44));
        backlog.put_back(taken);
        assert!(backlog.take(44).is_empty());
        let again = backlog.take(301);
        assert_eq!(again[0][0].iteration, 44);
        assert_eq!(backlog.take(301)[0][0].iteration, 44 + REPORTS_PER_REQUEST_MAX as u64 / 2);
        assert!(backlog.is_empty());
        backlog.push(300, vec![report(300); 1000]);
        assert_eq!(backlog.take(301)[0].len(), 1000);
    }
}

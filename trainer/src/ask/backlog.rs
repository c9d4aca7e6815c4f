//! Reports that wait for the predictor.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenstep_protocol::WorkerReport;

/// Iterations whose reports are kept while the predictor is away; the oldest fall out, and are counted.
const ITERATIONS_MAX: usize = 256;

/// Reports that one request carries, at most; but always those of one whole iteration, which travel together.
const REPORTS_PER_REQUEST: usize = 256;

/// The reports of iterations, the oldest first. Shared by whoever talks to the predictor.
#[derive(Debug, Clone, Default)]
pub struct Backlog(Arc<Mutex<Queue>>);

#[derive(Debug, Default)]
struct Queue {
    iterations: VecDeque<Vec<WorkerReport>>,
    done: u64,
    lost: u64,
}

impl Backlog {
    /// Adds the reports of iteration `iteration`, which is done.
    pub fn push(&self, iteration: u64, reports: Vec<WorkerReport>) {
        let mut queue = self.lock();
        queue.done = iteration + 1;
        queue.iterations.push_back(reports);
        queue.shed();
    }

    /// Takes what a request for iteration `asked` may carry: the oldest reports, of iterations before it.
    pub fn take(&self, asked: u64) -> Vec<Vec<WorkerReport>> {
        let mut queue = self.lock();
        let mut taken: Vec<Vec<WorkerReport>> = Vec::new();
        let mut reports = 0;
        while let Some(next) = queue.iterations.front()
            && next.iter().all(|report| report.iteration < asked)
            && (taken.is_empty() || reports + next.len() <= REPORTS_PER_REQUEST)
        {
            reports += next.len();
            taken.extend(queue.iterations.pop_front());
        }
        taken
    }

    /// Puts back what could not be delivered.
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

    /// Reports that were never delivered.
    pub fn lost(&self) -> u64 {
        self.lock().lost
    }

    /// Iterations that are done.
    pub fn done(&self) -> u64 {
        self.lock().done
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.lock().iterations.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Every change is whole by itself, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn shed(&mut self) {
        while self.iterations.len() > ITERATIONS_MAX {
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
        assert_eq!((taken.len(), taken[0][0].iteration), (REPORTS_PER_REQUEST / 2, 44));
        backlog.put_back(taken);
        assert!(backlog.take(44).is_empty());
        let again = backlog.take(301);
        assert_eq!(again[0][0].iteration, 44);
        assert_eq!(backlog.take(301)[0][0].iteration, 44 + REPORTS_PER_REQUEST as u64 / 2);
        assert!(backlog.is_empty());
        backlog.push(300, vec![report(300); 1000]);
        assert_eq!(backlog.take(301)[0].len(), 1000);
    }
}

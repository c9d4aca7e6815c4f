//! The open job.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use evenstep_protocol::{
    HistoryView, JobId, LogEntry, StepView, StepWorker, StragglerView, WorkerId, WorkerState, WorkerView,
    WorkersView,
};

use super::super::event::{ConnectionState, StreamEvent};

/// Limit of iterations kept for the chart.
const PAST_MAX: usize = 512;
/// Limit of workers in all iterations together: with more than 40 workers, fewer iterations are kept.
const PAST_WORKERS_MAX: usize = 20_480;
/// Number of iterations whose mean forecast error orders the workers.
const SLOWNESS_OVER: usize = 16;
/// Limit of log entries, the same as in the service.
const LOG_MAX: usize = 500;

/// The open job.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenJob {
    /// ID of the job.
    pub job_id: JobId,
    /// Connection of its stream.
    pub link: ConnectionState,
    /// Whether the job does not exist.
    pub gone: bool,
    /// The latest iteration.
    pub step: Option<StepView>,
    /// Iterations including the latest, oldest first.
    pub past: VecDeque<StepView>,
    /// The history before the stream was opened.
    pub history: Option<HistoryView>,
    /// The log, oldest first.
    pub log: VecDeque<LogEntry>,
    /// All workers that ever joined.
    pub workers: Option<WorkersView>,
    /// The selected worker; `None` selects the slowest.
    chosen: Option<WorkerId>,
}

impl OpenJob {
    /// A job without data.
    pub fn new(job_id: JobId) -> Self {
        Self {
            job_id,
            link: ConnectionState::default(),
            gone: false,
            step: None,
            past: VecDeque::new(),
            history: None,
            log: VecDeque::new(),
            workers: None,
            chosen: None,
        }
    }

    /// Applies an event of the job.
    pub fn apply(&mut self, heard: StreamEvent, now: Duration) {
        self.link.apply(&heard, now);
        match heard {
            StreamEvent::Step(step) => {
                self.gone = false;
                // A stream that is opened again begins with the latest iteration, and a run may start again with an earlier one.
                while self.past.back().is_some_and(|last| last.iteration >= step.iteration) {
                    self.past.pop_back();
                }
                self.past.push_back((*step).clone());
                let workers =
                    |past: &VecDeque<StepView>| past.iter().map(|step| step.workers.len()).sum::<usize>();
                while self.past.len() > PAST_MAX || workers(&self.past) > PAST_WORKERS_MAX {
                    self.past.pop_front();
                }
                self.step = Some(*step);
            }
            // Entries that arrived while the log was read are in both.
            StreamEvent::Log(entry) if self.log.contains(&entry) => {}
            StreamEvent::Log(entry) => {
                if self.log.len() == LOG_MAX {
                    self.log.pop_front();
                }
                self.log.push_back(entry);
            }
            StreamEvent::Logs(view) => {
                let surplus = view.entries.len().saturating_sub(LOG_MAX);
                self.log = view.entries.into_iter().skip(surplus).collect();
            }
            StreamEvent::Workers(workers) => self.workers = Some(workers),
            StreamEvent::History(history) => self.history = Some(history),
            StreamEvent::Gone => self.gone = true,
            StreamEvent::Opened => self.gone = false,
            StreamEvent::Alive | StreamEvent::Lost(_) | StreamEvent::Jobs(_) | StreamEvent::Nodes(_) => {}
        }
    }

    /// Selects the worker `below` rows down.
    pub(super) fn choose(&mut self, below: isize) {
        let order = self.by_slowness();
        let at = self.chosen_at(&order).saturating_add_signed(below).min(order.len().saturating_sub(1));
        self.chosen = order.get(at).map(|worker| worker.worker.clone());
    }

    /// Position of the selected worker in this order.
    pub fn chosen_at(&self, order: &[&StepWorker]) -> usize {
        let at =
            self.chosen.as_ref().and_then(|chosen| order.iter().position(|worker| worker.worker == *chosen));
        at.unwrap_or(0)
    }

    /// The selected worker in the latest iteration.
    pub fn chosen_worker(&self) -> Option<&StepWorker> {
        let order = self.by_slowness();
        order.get(self.chosen_at(&order)).copied()
    }

    /// The workers of the latest iteration, slowest first: slow workers by their share of the expected speed, then the
    /// others by their mean forecast error in the latest iterations.
    pub fn by_slowness(&self) -> Vec<&StepWorker> {
        let slow: BTreeMap<&WorkerId, f64> =
            self.slow().map(|(worker, straggler)| (&worker.worker, straggler.speed_ratio)).collect();
        let mut errors: BTreeMap<&WorkerId, (f64, f64)> = BTreeMap::new();
        for worker in self.past.iter().rev().take(SLOWNESS_OVER).flat_map(|step| &step.workers) {
            if let Some((actual, predicted)) = worker.actual_samples_per_s.zip(worker.predicted_samples_per_s)
            {
                let (sum, count) = errors.entry(&worker.worker).or_default();
                (*sum, *count) = (*sum + actual / predicted, *count + 1.0);
            }
        }
        let mut order: Vec<&StepWorker> = self.step.iter().flat_map(|step| &step.workers).collect();
        let key = |worker: &StepWorker| {
            let error = errors.get(&worker.worker).map_or(f64::INFINITY, |(sum, count)| sum / count);
            (slow.get(&worker.worker).copied().unwrap_or(f64::INFINITY), error)
        };
        order.sort_by(|one, other| {
            let (one_key, other_key) = (key(one), key(other));
            let keys = one_key.0.total_cmp(&other_key.0).then(one_key.1.total_cmp(&other_key.1));
            keys.then(one.rank.cmp(&other.rank))
        });
        order
    }

    /// The live workers that are slow for a long time, slowest first.
    pub fn slow(&self) -> impl Iterator<Item = (&WorkerView, &StragglerView)> {
        let known = self.workers.iter().flat_map(|view| &view.workers);
        let slow = known.filter(|worker| worker.state == WorkerState::Live);
        let mut slow: Vec<_> = slow.filter_map(|worker| Some((worker, worker.straggler.as_ref()?))).collect();
        slow.sort_by(|one, other| one.1.speed_ratio.total_cmp(&other.1.speed_ratio));
        slow.into_iter()
    }

    /// The description of a worker, if known.
    pub fn worker(&self, worker: &StepWorker) -> Option<&WorkerView> {
        self.workers.as_ref()?.workers.iter().find(|view| view.worker == worker.worker)
    }
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::{LogKind, LogView};

    use super::super::tests::{job_id, step, straggler, workers};
    use super::*;

    fn entry(text: &str) -> LogEntry {
        LogEntry { at_unix_ms: 1, kind: LogKind::Joined, iteration: None, worker: None, text: text.into() }
    }

    #[test]
    fn the_past_and_the_log_are_bounded() {
        let mut job = OpenJob::new(job_id("a"));
        for iteration in 0..=PAST_MAX as u64 {
            job.apply(StreamEvent::Step(Box::new(step(iteration, 1))), Duration::ZERO);
        }
        assert_eq!((job.past.len(), job.past[0].iteration), (PAST_MAX, 1));
        job.apply(StreamEvent::Step(Box::new(step(1000, PAST_WORKERS_MAX as u64 - 10))), Duration::ZERO);
        assert_eq!(job.past.len(), 11);
        let entries = (0..=LOG_MAX).map(|at| entry(&at.to_string())).collect();
        job.apply(StreamEvent::Logs(LogView { job_id: job_id("a"), entries }), Duration::ZERO);
        job.apply(StreamEvent::Log(entry("newest")), Duration::ZERO);
        assert_eq!(
            (job.log.len(), job.log[0].text.as_str(), job.log[LOG_MAX - 1].text.as_str()),
            (LOG_MAX, "2", "newest")
        );
    }

    #[test]
    fn the_selection_stays_among_existing_workers() {
        let mut job = OpenJob::new(job_id("a"));
        job.apply(StreamEvent::Step(Box::new(step(1, 4))), Duration::ZERO);
        job.choose(3);
        assert_eq!(job.chosen_worker().unwrap().rank, 3);
        job.apply(StreamEvent::Step(Box::new(step(2, 2))), Duration::ZERO);
        assert_eq!(job.chosen_worker().unwrap().rank, 0);
    }

    #[test]
    fn the_slowest_worker_is_first_and_the_selection_follows_its_worker() {
        let ranks = |job: &OpenJob| job.by_slowness().iter().map(|worker| worker.rank).collect::<Vec<_>>();
        let mut job = OpenJob::new(job_id("a"));
        let mut slower = step(1, 4);
        slower.workers[2].actual_samples_per_s = Some(300.0);
        job.apply(StreamEvent::Step(Box::new(slower)), Duration::ZERO);
        assert_eq!(ranks(&job), [2, 0, 1, 3]);
        job.choose(1);
        let mut workers = workers(4);
        workers.workers[3].straggler = Some(straggler());
        job.apply(StreamEvent::Workers(workers), Duration::ZERO);
        assert_eq!(ranks(&job), [3, 2, 0, 1], "a slow worker comes before a single error");
        assert_eq!(job.chosen_worker().unwrap().rank, 0);
    }

    #[test]
    fn a_run_that_starts_again_replaces_its_iterations() {
        let mut job = OpenJob::new(job_id("a"));
        for iteration in [4, 5, 6, 6, 3, 5] {
            job.apply(StreamEvent::Step(Box::new(step(iteration, 1))), Duration::ZERO);
        }
        assert_eq!(job.past.iter().map(|step| step.iteration).collect::<Vec<_>>(), [3, 5]);
    }

    #[test]
    fn a_job_that_reappears_is_not_marked_deleted() {
        let mut job = OpenJob::new(job_id("a"));
        job.apply(StreamEvent::Gone, Duration::ZERO);
        assert!(job.gone);
        job.apply(StreamEvent::Step(Box::new(step(1, 1))), Duration::ZERO);
        assert!(!job.gone);
    }
}

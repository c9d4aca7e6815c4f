//! The open job.

use std::collections::VecDeque;
use std::time::Duration;

use evenstep_protocol::{HistoryView, JobId, LogEntry, StepView, StepWorker, WorkerView, WorkersView};

use super::{ConnectionState, StreamEvent};

/// Limit of iterations kept for the chart.
const PAST_MAX: usize = 512;
/// Limit of workers in all iterations together: with more than 40 workers, fewer iterations are kept.
const PAST_WORKERS_MAX: usize = 20_480;
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
    /// Position of the selected worker among the workers of the iteration.
    pub chosen: usize,
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
            chosen: 0,
        }
    }

    /// Applies an event of the job.
    pub fn apply(&mut self, heard: StreamEvent, now: Duration) {
        self.link.apply(&heard, now);
        match heard {
            StreamEvent::Step(step) => {
                self.gone = false;
                // A stream that is opened again begins with the latest iteration.
                if self.past.back().is_some_and(|last| last.iteration == step.iteration) {
                    self.past.pop_back();
                }
                self.past.push_back((*step).clone());
                let workers =
                    |past: &VecDeque<StepView>| past.iter().map(|step| step.workers.len()).sum::<usize>();
                while self.past.len() > PAST_MAX || workers(&self.past) > PAST_WORKERS_MAX {
                    self.past.pop_front();
                }
                self.step = Some(*step);
                self.choose(0);
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
        let last = self.step.as_ref().map_or(0, |step| step.workers.len().saturating_sub(1));
        self.chosen = self.chosen.saturating_add_signed(below).min(last);
    }

    /// The selected worker in the latest iteration.
    pub fn chosen_worker(&self) -> Option<&StepWorker> {
        self.step.as_ref()?.workers.get(self.chosen)
    }

    /// The description of a worker, if known.
    pub fn worker(&self, worker: &StepWorker) -> Option<&WorkerView> {
        self.workers.as_ref()?.workers.iter().find(|view| view.worker == worker.worker)
    }
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::{LogKind, LogView};

    use super::super::tests::{job_id, step};
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
        job.apply(StreamEvent::Step(Box::new(step(2, 2))), Duration::ZERO);
        assert_eq!(job.chosen_worker().unwrap().rank, 1);
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

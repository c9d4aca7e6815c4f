//! Live statistics and log of a job, under one lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenstep_core::job::JobState;
use evenstep_core::membership::State;
use evenstep_observability::metrics::{histogram, prometheus::Histogram};
use evenstep_protocol::{
    AllocateResponse, JobId, JobState as JobStateView, JobSummary, LogEntry, LogKind, StepView, WorkerId,
    WorkerReport,
};
use evenstep_store::MemberEvent;
use tokio::sync::watch;

use super::log::Log;
use super::steps::{Step, Steps};
use super::tally::Tally;
use crate::jobs::describe;

/// Histogram buckets of step times, in seconds.
const STEP_TIMES_S: &[f64] =
    &[0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0];
/// Shortest interval between two log messages about plan changes, in milliseconds. A job may change its plan
/// at every iteration.
const LOG_INTERVAL_MS: i64 = 10_000;

/// Live statistics and log of a job.
#[derive(Debug)]
pub struct Live {
    seen: Mutex<Seen>,
    changes: watch::Sender<()>,
    pub(super) step_times: Histogram,
}

#[derive(Debug, Default)]
pub(super) struct Seen {
    pub members: Option<MembersSummary>,
    pub steps: Steps,
    pub workers: BTreeMap<WorkerId, Tally>,
    pub log: Log,
    /// Number of changes of workers, job options or overrides.
    changed: u64,
    pub refitted_unix_ms: Option<i64>,
    /// Number of plan changes at the time of the latest log message about them.
    logged: u64,
    logged_unix_ms: i64,
}

/// The summary of a job's workers.
#[derive(Debug, Clone, Copy)]
pub(super) struct MembersSummary {
    state: JobStateView,
    pub live: u64,
    pub departed: u64,
    pub global_batch: u64,
}

/// The position up to which a reader has read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cursor {
    step: Option<(u64, i64)>,
    log: u64,
    changed: u64,
}

/// The changes since a reader's last read.
#[derive(Debug, Default)]
pub struct Updates {
    /// The latest completed iteration.
    pub step: Option<StepView>,
    /// New entries of the log.
    pub log: Vec<LogEntry>,
    /// Whether workers, job options or overrides changed.
    pub changed: bool,
}

impl Live {
    /// Statistics at zero, and an empty log.
    pub fn new() -> Self {
        let help = "Step time of an iteration: the longest sum of data wait, compute time and barrier wait of any worker.";
        Self {
            seen: Mutex::default(),
            changes: watch::Sender::new(()),
            step_times: histogram("evenstep_iteration_duration_seconds", help, STEP_TIMES_S),
        }
    }

    /// Returns a receiver that is notified of every change.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Returns the changes since `cursor`, and advances it.
    pub fn updates(&self, cursor: &mut Cursor) -> Updates {
        let seen = self.lock();
        let latest = seen.steps.latest();
        let mark = latest.map(|step| (step.iteration(), step.at_unix_ms()));
        let step = latest.filter(|_| mark != cursor.step).map(Step::view);
        cursor.step = mark;
        let (log, written) = seen.log.since(cursor.log);
        let changed = seen.changed != cursor.changed;
        (cursor.log, cursor.changed) = (written, seen.changed);
        Updates { step, log, changed }
    }

    /// A cursor at the end of the log, for a reader that has not seen the latest iteration.
    pub fn cursor(&self) -> Cursor {
        let seen = self.lock();
        Cursor { step: None, log: seen.log.since(u64::MAX).1, changed: seen.changed }
    }

    /// The whole log.
    pub fn log(&self) -> Vec<LogEntry> {
        self.lock().log.since(0).0
    }

    /// The summary of the job.
    pub fn line(&self, job_id: &JobId) -> JobSummary {
        let seen = self.lock();
        let (latest, means) = (seen.steps.latest(), seen.steps.means());
        JobSummary {
            job_id: job_id.clone(),
            state: seen.members.map(|line| line.state),
            url: None,
            live_workers: seen.members.map_or(0, |line| line.live),
            iteration: latest.map(Step::iteration),
            at_unix_ms: latest.map(Step::at_unix_ms),
            step_time_s: means.map(|means| means.step_time_s),
            samples_per_s: means.map(|means| means.samples_per_s),
            waiting_share: means.and_then(|means| means.waiting_share),
            error_ratio: means.and_then(|means| means.error_ratio),
            reason: seen.steps.latest_answer().map(|answer| answer.decision.reason.clone()),
        }
    }

    /// Records a new allocation and the reports of a request.
    pub fn allocated(
        &self,
        job_id: &JobId,
        answer: Option<Arc<AllocateResponse>>,
        reports: &[WorkerReport],
        now_unix_ms: i64,
    ) {
        let mut guard = self.lock();
        let seen = &mut *guard;
        for report in reports {
            // Workers that have left meanwhile are not shown.
            let Some(tally) = seen.workers.get_mut(&report.worker) else { continue };
            let share = seen.steps.reported(report, now_unix_ms, tally.rank);
            tally.add(report, share, now_unix_ms);
        }
        for step_time_s in seen.steps.close() {
            self.step_times.observe(step_time_s);
        }
        let mut logged = None;
        if let Some(answer) = answer {
            seen.log.answered(now_unix_ms, seen.steps.latest_answer(), &answer);
            let changes = seen.log.reallocations().values().sum::<u64>();
            if changes > seen.logged && now_unix_ms - seen.logged_unix_ms >= LOG_INTERVAL_MS {
                logged = Some((answer.clone(), changes - seen.logged));
                (seen.logged, seen.logged_unix_ms) = (changes, now_unix_ms);
            }
            seen.steps.answered(answer);
        }
        drop(guard);
        if let Some((answer, changes)) = logged {
            let (iteration, reason) = (answer.iteration, &answer.decision.reason);
            tracing::info!(%job_id, iteration, changes, reason, "the plan changed");
        }
        self.changes.send_replace(());
    }

    /// Logs a change of a worker.
    pub fn member(&self, now_unix_ms: i64, event: &MemberEvent) {
        self.lock().log.member(now_unix_ms, event);
    }

    /// Logs a change of the job options.
    pub fn options(&self, now_unix_ms: i64) {
        self.lock().log.write(now_unix_ms, LogKind::Changed, None, "the job options changed");
    }

    /// Logs a fit of networks.
    pub fn refitted(&self, now_unix_ms: i64, networks: usize) {
        let mut seen = self.lock();
        seen.refitted_unix_ms = Some(now_unix_ms);
        let text = format!("{networks} networks were fitted again");
        seen.log.write(now_unix_ms, LogKind::Refitted, None, text);
        drop(seen);
        self.changes.send_replace(());
    }

    /// Approximate memory of the latest iterations, in bytes.
    pub fn bytes(&self) -> u64 {
        self.lock().steps.bytes()
    }

    /// Drops the latest iterations, when the state of the job is removed from memory.
    pub fn rest(&self) {
        self.lock().steps = Steps::default();
    }

    /// Notifies readers that the job was deleted or given up.
    pub fn gone(&self) {
        self.changes.send_replace(());
    }

    /// The live workers.
    pub fn live_workers(&self) -> Vec<WorkerId> {
        self.lock().workers.keys().cloned().collect()
    }

    /// Records the live workers, their ranks and devices.
    pub fn members(&self, state: &JobState) {
        let mut guard = self.lock();
        let seen = &mut *guard;
        let mut live = 0;
        for (rank, worker) in state.members.live().enumerate() {
            if !seen.workers.contains_key(worker) {
                seen.workers.insert(worker.clone(), Tally::default());
            }
            if let Some(tally) = seen.workers.get_mut(worker) {
                tally.rank = rank;
                tally.device = state.workers.get(worker).and_then(|known| known.request.device.clone());
            }
            live += 1;
        }
        if seen.workers.len() > live {
            let live: BTreeSet<&WorkerId> = state.members.live().collect();
            seen.workers.retain(|worker, _| live.contains(worker));
        }
        let departed = state.members.all().iter().filter(|member| member.state != State::Live).count();
        seen.members = Some(MembersSummary {
            state: describe::activity(state),
            live: live as u64,
            departed: departed as u64,
            global_batch: state.global_batch(),
        });
        seen.changed += 1;
        drop(guard);
        self.changes.send_replace(());
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

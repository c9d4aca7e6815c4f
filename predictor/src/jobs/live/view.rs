//! Live statistics and log of a job, under one lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenstep_core::job::{EvenTime, JobState};
use evenstep_core::membership::State;
use evenstep_observability::metrics::{histogram, prometheus::Histogram};
use evenstep_protocol::{
    AllocateResponse, JobId, JobSummary, LogEntry, LogKind, StepView, StragglerView, WorkerId, WorkerReport,
};
use evenstep_store::{MemberEvent, MemberEventKind, StoredEvent, StoredPast, StoredSummary};
use tokio::sync::watch;

use super::account::{Account, EvenStep, IterationTimes, stands_for};
use super::log::Log;
use super::status::{Facts, Status};
use super::steps::{Means, Steps, Unstored};
use super::tally::Tally;
use super::totals::Totals;

/// Histogram buckets of step times, in seconds.
const STEP_TIMES_S: &[f64] =
    &[0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0];
/// Shortest interval between two log messages about plan changes, in milliseconds. A job may change its plan
/// at every iteration.
const LOG_INTERVAL_MS: i64 = 10_000;
/// Time until a job is restored again after that failed, in milliseconds.
const RESTORE_PAUSE_MS: i64 = 30_000;
/// Weight of the newest iteration in the mean step time that tells whether a job is stalled.
const STEP_TIME_WEIGHT: f64 = 0.1;

/// Live statistics and log of a job.
#[derive(Debug)]
pub struct Live {
    seen: Mutex<Seen>,
    changes: watch::Sender<()>,
    pub(super) step_times: Histogram,
}

#[derive(Debug, Default)]
pub(super) struct Seen {
    pub facts: Facts,
    pub members: Option<MembersSummary>,
    pub steps: Steps,
    /// Means of the iterations that are not in memory any more.
    means: Option<Means>,
    /// Reason of the latest decision, if its allocation is not in memory.
    reason: Option<String>,
    /// Iterations that ended while this predictor followed the job.
    account: Account,
    /// The first of these iterations.
    account_from: Option<u64>,
    /// The last of these iterations.
    account_to: Option<u64>,
    /// Iterations from before; `None` until they are read from the store.
    earlier: Option<Totals>,
    /// The end of the latest of these iterations. A run may return to an earlier iteration.
    until: u64,
    /// Number of iterations that ended while this predictor followed the job, and this number when totals were stored.
    closed: u64,
    stored: u64,
    /// Time from which on the job may be restored, after that failed.
    restorable_unix_ms: i64,
    pub workers: BTreeMap<WorkerId, Tally>,
    /// Workers that are slow now.
    pub slow: BTreeMap<WorkerId, StragglerView>,
    pub log: Log,
    /// Number of changes of workers, job options or overrides.
    changed: u64,
    pub refitted_unix_ms: Option<i64>,
    pub sums: Sums,
    /// Number of plan changes at the time of the latest log message about them.
    logged: u64,
    logged_unix_ms: i64,
}

/// Sums over the iterations that ended while this predictor followed the job, in seconds. Unlike the blocks of an account, they
/// never fall, not even by a rounding error.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sums {
    /// Step time of the iterations for which the time with even shares is known.
    pub measured_s: f64,
    /// Their time with even shares.
    pub even_s: f64,
    /// Step time of the iterations for which a worker reported its wait.
    pub stepped_s: f64,
    /// Mean barrier wait of the workers in these iterations.
    pub waited_s: f64,
}

impl Sums {
    /// Adds an iteration that stands for this number of iterations of its size.
    fn add(&mut self, took_s: f64, even: EvenStep, weight: f64) {
        let is_sum = |seconds: f64| (weight * seconds).is_finite() && seconds > 0.0;
        if is_sum(took_s) && is_sum(even.even_s) {
            self.measured_s += weight * took_s;
            self.even_s += weight * even.even_s;
        }
    }

    /// Adds the waits of such an iteration.
    fn add_waits(&mut self, times: IterationTimes, weight: f64) {
        let Some(waited_s) = times.waited_s else { return };
        if (weight * (times.took_s + waited_s)).is_finite() && times.took_s > 0.0 && waited_s >= 0.0 {
            self.stepped_s += weight * times.took_s;
            self.waited_s += weight * waited_s;
        }
    }
}

/// The summary of a job's workers.
#[derive(Debug, Clone)]
pub(super) struct MembersSummary {
    pub live: u64,
    pub departed: u64,
    pub global_batch: u64,
    pub unit: String,
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
    /// Statistics at zero, and an empty log. The job is followed from now on.
    pub fn new(now_unix_ms: i64) -> Self {
        let help = "Step time of an iteration: of the whole step if a worker reports it, else the longest sum of data wait, compute time and barrier wait of any worker.";
        Self {
            seen: Mutex::new(Seen {
                facts: Facts { watched_unix_ms: now_unix_ms, ..Facts::default() },
                ..Seen::default()
            }),
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
        let unit = seen.members.as_ref().map_or("samples", |members| &members.unit);
        let step = latest.filter(|_| mark != cursor.step).map(|step| step.view(unit));
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
    pub fn line(&self, job_id: &JobId, now_unix_ms: i64) -> JobSummary {
        let seen = self.lock();
        let latest = seen.steps.latest();
        let means = seen.steps.means().or(seen.means);
        let reported = latest.map(|step| (step.iteration(), step.at_unix_ms())).or(seen.facts.past.reported);
        let account = seen.account();
        let Status { state, since_unix_ms, reason } = seen.status(now_unix_ms);
        JobSummary {
            job_id: job_id.clone(),
            state: Some(state),
            state_since_unix_ms: since_unix_ms,
            state_reason: Some(reason),
            url: None,
            created_unix_ms: Some(seen.facts.past.created_unix_ms).filter(|at| *at > 0),
            unit: seen.members.as_ref().map_or_else(|| "samples".to_owned(), |members| members.unit.clone()),
            live_workers: seen.facts.live,
            slow_workers: seen.slow.len() as u64,
            iteration: reported.map(|(iteration, _)| iteration),
            at_unix_ms: reported.map(|(_, at)| at),
            step_time_s: means.map(|means| means.step_time_s),
            samples_per_s: means.map(|means| means.samples_per_s),
            waiting_share: account.as_ref().and_then(Account::lost_share),
            error_ratio: means.and_then(|means| means.error_ratio),
            trained_s: account.as_ref().and_then(Account::trained_s),
            time_lost_s: account.as_ref().and_then(Account::lost_s),
            gain: account.as_ref().and_then(Account::gain),
            time_saved: account.as_ref().and_then(Account::saved),
            reason: seen
                .steps
                .latest_answer()
                .map(|answer| answer.decision.reason.clone())
                .or_else(|| seen.reason.clone()),
        }
    }

    /// The state of the job.
    pub fn status(&self, now_unix_ms: i64) -> Status {
        self.lock().status(now_unix_ms)
    }

    /// Time at which the job was created, in milliseconds since 1970.
    pub fn created_unix_ms(&self) -> i64 {
        self.lock().facts.past.created_unix_ms
    }

    /// The account of all iterations; `None` until the earlier ones are restored, because the account of the later ones
    /// is not the job's.
    pub fn account(&self) -> Option<Account> {
        self.lock().account()
    }

    /// The completed iterations that are not stored for charts as they are now.
    pub fn unstored_steps(&self) -> Vec<Unstored> {
        self.lock().steps.unstored()
    }

    /// Records that these iterations were stored for charts.
    pub fn stored_steps(&self, stored: &[Unstored]) {
        self.lock().steps.stored(stored);
    }

    /// The totals of all iterations and their version, unless they are stored.
    pub fn new_totals(&self) -> Option<(Totals, u64)> {
        let seen = self.lock();
        if seen.closed == seen.stored {
            return None;
        }
        let until = seen.until.max(seen.earlier.as_ref()?.until);
        let totals = Totals { until, account: seen.account()?, means: seen.steps.means().or(seen.means) };
        Some((totals, seen.closed))
    }

    /// Records that totals of this version are stored.
    pub fn stored_totals(&self, version: u64) {
        self.lock().stored = version;
    }

    /// Whether the job may be restored now. After a failure, it may be only later.
    pub fn may_restore(&self, now_unix_ms: i64) -> bool {
        let seen = self.lock();
        seen.earlier.is_none() && seen.restorable_unix_ms <= now_unix_ms
    }

    /// Records that the job could not be restored.
    pub fn restore_failed(&self, now_unix_ms: i64) {
        self.lock().restorable_unix_ms = now_unix_ms.saturating_add(RESTORE_PAUSE_MS);
    }

    /// Records the past of the job, from the store.
    pub fn past(&self, past: StoredPast) {
        let facts = &mut self.lock().facts;
        let newer = facts.past.reported.filter(|known| past.reported.is_none_or(|stored| stored.0 < known.0));
        facts.past = StoredPast { reported: newer.or(past.reported), ..past };
    }

    /// Whether the log is empty.
    pub fn has_empty_log(&self) -> bool {
        self.lock().log.is_empty()
    }

    /// Begins the log with earlier changes of workers, from the store.
    pub fn restore_log(&self, events: Vec<StoredEvent>) {
        self.lock().log.restore(events);
    }

    /// Records the summary of a job whose state is not in memory.
    pub fn stored(&self, stored: &StoredSummary) {
        self.past(stored.past.clone());
        let mut seen = self.lock();
        let totals = stored.totals.as_deref().and_then(Totals::read);
        // Totals of all reported iterations are complete: the history is not read.
        let reported = stored.past.reported.map_or(0, |(iteration, _)| iteration + 1);
        if let Some(totals) = totals.filter(|totals| totals.until >= reported) {
            seen.means = totals.means;
            seen.facts.step_time_s = totals.means.map(|means| means.step_time_s);
            seen.earlier = Some(totals);
        }
        (seen.facts.live, seen.facts.min_workers) = (stored.live_workers, stored.spec.min_workers);
        seen.reason = stored.last_decision.as_ref().map(|decision| decision.reason.clone());
        seen.members = Some(MembersSummary {
            live: stored.live_workers,
            departed: stored.past.joined.saturating_sub(stored.live_workers),
            global_batch: stored.spec.global_batch,
            unit: stored.spec.unit.clone(),
        });
    }

    /// Time of the latest report, in milliseconds since 1970.
    pub fn reported_unix_ms(&self) -> Option<i64> {
        self.lock().facts.past.reported.map(|(_, at)| at)
    }

    /// Whether the workers of the job are known: from its state, or from the store.
    pub fn is_known(&self) -> bool {
        self.lock().members.is_some()
    }

    /// Whether no allocation is in memory.
    pub fn has_no_steps(&self) -> bool {
        self.lock().steps.is_empty()
    }

    /// Whether earlier iterations were read from the store.
    pub fn is_restored(&self) -> bool {
        self.lock().earlier.is_some()
    }

    /// The first iteration that ended while this predictor followed the job: the history before it is to be restored.
    pub fn restored_until(&self) -> u64 {
        self.lock().account_from.unwrap_or(u64::MAX)
    }

    /// Records that the job is new: it has no earlier iterations.
    pub fn begin(&self) {
        self.lock().earlier = Some(Totals::none());
    }

    /// Restores the totals of earlier iterations and the latest of them, before iteration `until`.
    pub fn restore(&self, earlier: Totals, latest: Steps, until: u64) {
        let mut seen = self.lock();
        // An iteration may have ended meanwhile: then the account is read again.
        if seen.earlier.is_some() || seen.account_from.unwrap_or(u64::MAX) != until {
            return;
        }
        seen.means = seen.means.or(earlier.means);
        // The next iteration stands for those since the last one of these, too.
        seen.account_to = seen.account_to.or(earlier.until.checked_sub(1));
        seen.earlier = Some(earlier);
        seen.facts.step_time_s = seen.means.map(|means| means.step_time_s);
        if seen.steps.is_empty() {
            seen.steps = latest;
        }
        drop(seen);
        self.changes.send_replace(());
    }

    /// Records a new allocation, the reports of a request, and the times with even shares that became known with them.
    pub fn allocated(
        &self,
        job_id: &JobId,
        answer: Option<Arc<AllocateResponse>>,
        reports: &[WorkerReport],
        even: &[EvenTime],
        now_unix_ms: i64,
    ) {
        let mut guard = self.lock();
        let seen = &mut *guard;
        for report in reports {
            // Workers that have left meanwhile are not shown.
            let Some(tally) = seen.workers.get_mut(&report.worker) else { continue };
            let share = seen.steps.reported(report, now_unix_ms, tally.rank);
            tally.add(report, share, now_unix_ms);
            let newest = seen.facts.past.reported.map_or(0, |(iteration, _)| iteration);
            seen.facts.past.reported = Some((newest.max(report.iteration), now_unix_ms));
        }
        for (iteration, times) in seen.steps.close() {
            self.step_times.observe(times.took_s);
            seen.account_from = Some(seen.account_from.unwrap_or(iteration));
            let weight = times.weight(stands_for(iteration, seen.account_to.replace(iteration), 1));
            seen.account.add(times, weight);
            seen.sums.add_waits(times, weight);
            seen.steps.weigh(iteration, weight);
            (seen.until, seen.closed) = (seen.until.max(iteration.saturating_add(1)), seen.closed + 1);
            let mean_s = seen.facts.step_time_s.unwrap_or(times.took_s);
            seen.facts.step_time_s = Some(mean_s + STEP_TIME_WEIGHT * (times.took_s - mean_s));
        }
        seen.steps.learned(even);
        for (took_s, even, weight) in seen.steps.take_even() {
            seen.account.add_even(took_s, even, weight);
            seen.sums.add(took_s, even, weight);
            seen.closed += 1;
        }
        let mut logged = None;
        if let Some(answer) = answer {
            seen.log.answered(now_unix_ms, seen.steps.latest_answer(), &answer);
            let changes = seen.log.reallocations().values().sum::<u64>();
            if changes > seen.logged && now_unix_ms - seen.logged_unix_ms >= LOG_INTERVAL_MS {
                logged = Some((answer.clone(), changes - seen.logged));
                (seen.logged, seen.logged_unix_ms) = (changes, now_unix_ms);
            }
            seen.steps.answered(answer, now_unix_ms);
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
        let mut seen = self.lock();
        if matches!(event.kind, MemberEventKind::Joined(_)) {
            seen.facts.past.joined_unix_ms = Some(now_unix_ms);
        }
        seen.log.member(now_unix_ms, event);
    }

    /// Records the speed of each worker over its expected speed.
    pub fn expected(&self, ratios: &BTreeMap<WorkerId, f64>) {
        let mut seen = self.lock();
        for (worker, tally) in &mut seen.workers {
            tally.expected_ratio = ratios.get(worker).copied();
        }
    }

    /// Records the workers that are slow now, and logs those that became slow or recovered.
    pub fn slow(&self, now_unix_ms: i64, slow: BTreeMap<WorkerId, StragglerView>) {
        let mut guard = self.lock();
        let seen = &mut *guard;
        let mut new: Vec<_> = slow.iter().filter(|(worker, _)| !seen.slow.contains_key(*worker)).collect();
        new.sort_by(|(_, one), (_, other)| one.speed_ratio.total_cmp(&other.speed_ratio));
        for (worker, view) in new {
            let text = format!(
                "{worker} is slow: {:.0} % of its expected speed since iteration {}; {}",
                100.0 * view.speed_ratio,
                view.since_iteration,
                view.detail
            );
            seen.log.write(now_unix_ms, LogKind::Slow, Some(worker), text);
        }
        for worker in seen.slow.keys().filter(|worker| !slow.contains_key(*worker)) {
            let text = format!("{worker} is not slow any more");
            seen.log.write(now_unix_ms, LogKind::Recovered, Some(worker), text);
        }
        let is_changed = seen.slow.keys().ne(slow.keys());
        seen.changed += u64::from(is_changed);
        seen.slow = slow;
        drop(guard);
        if is_changed {
            self.changes.send_replace(());
        }
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
        let mut seen = self.lock();
        seen.reason =
            seen.steps.latest_answer().map(|answer| answer.decision.reason.clone()).or(seen.reason.take());
        seen.means = seen.steps.means().or(seen.means);
        seen.steps = Steps::default();
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
        seen.slow.retain(|worker, _| seen.workers.contains_key(worker));
        seen.facts.members(state);
        seen.members = Some(MembersSummary {
            live: live as u64,
            departed: departed as u64,
            global_batch: state.global_batch(),
            unit: state.spec.unit.clone(),
        });
        seen.changed += 1;
        drop(guard);
        self.changes.send_replace(());
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    pub fn status(&self, now_unix_ms: i64) -> Status {
        self.facts.status(now_unix_ms)
    }

    fn account(&self) -> Option<Account> {
        let mut account = self.earlier.as_ref()?.account.clone();
        account.append(&self.account);
        Some(account)
    }
}

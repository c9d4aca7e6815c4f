//! Live statistics and log of a job, under one lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenstep_core::attempts::Attempts;
use evenstep_core::job::{EvenTime, JobState};
use evenstep_observability::metrics::{histogram, prometheus::Histogram};
use evenstep_protocol::{AllocateResponse, JobId, LogKind, StragglerView, WorkerId, WorkerReport};
use evenstep_store::{MemberEvent, MemberEventKind};
use tokio::sync::watch;

use super::account::{Account, stands_for};
use super::seen::Seen;
use super::status::Facts;
use super::tally::Tally;
use crate::clock::Now;
use crate::number_format::count;

/// Histogram buckets of step times, in seconds.
const STEP_TIMES_S: &[f64] =
    &[0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0];
/// Shortest interval between two log messages about plan changes, in milliseconds. A job may change its plan
/// at every iteration.
const LOG_INTERVAL_MS: i64 = 10_000;
/// Weight of the newest iteration in the mean step time that tells whether a job is stalled.
const STEP_TIME_WEIGHT: f64 = 0.1;

/// Live statistics and log of a job.
#[derive(Debug)]
pub struct Live {
    seen: Mutex<Seen>,
    pub(super) changes: watch::Sender<()>,
    pub(super) step_times: Histogram,
}

impl Live {
    /// Statistics at zero, and an empty log. The job is followed from now on; `now_ms` is a time of the steady clock.
    pub fn new(now_ms: i64) -> Self {
        let help = "Step time of an iteration: of the whole step if a worker reports it, else the longest sum of data wait, compute time and barrier wait of any worker.";
        Self {
            seen: Mutex::new(Seen {
                facts: Facts { active_ms: now_ms, ..Facts::default() },
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

    /// Records a new allocation, the reports of a request, and the times with even shares that became known with them.
    pub fn allocated(
        &self,
        job_id: &JobId,
        attempts: &Attempts,
        answer: Option<Arc<AllocateResponse>>,
        reports: &[WorkerReport],
        even: &[EvenTime],
        now: Now,
    ) {
        let now_unix_ms = now.unix_ms;
        let mut guard = self.lock();
        let seen = &mut *guard;
        if !reports.is_empty() {
            seen.facts.active_ms = now.steady_ms;
        }
        for report in reports {
            // Workers that have left meanwhile are not shown.
            let Some(tally) = seen.workers.get_mut(&report.worker) else { continue };
            let share = seen.steps.reported(report, now_unix_ms, tally.rank);
            tally.add(report, share, now_unix_ms);
            seen.total.add(report, share, now_unix_ms);
            let newest = seen.facts.past.reported.map_or(0, |(iteration, _)| iteration);
            seen.facts.past.reported = Some((newest.max(report.iteration), now_unix_ms));
        }
        for (iteration, times) in seen.steps.close() {
            self.step_times.observe(times.took_s);
            seen.account_from = Some(seen.account_from.unwrap_or(iteration));
            let counted = seen.account_to.map_or(1, |before| stands_for(attempts, iteration, before));
            // It may be a late one.
            seen.account_to = seen.account_to.max(Some(iteration));
            let weight = times.weight(counted);
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
            if seen.attempts.newest() != attempts.newest() {
                seen.steps.abandon_open();
            }
            seen.attempts = attempts.clone();
            let iteration = attempts.at(answer.iteration).iteration;
            seen.log.answered(now_unix_ms, seen.steps.latest_answer(), &answer, iteration);
            let changes = seen.log.reallocations().values().sum::<u64>();
            let is_due = seen.logged_ms.is_none_or(|at| now.steady_ms - at >= LOG_INTERVAL_MS);
            if changes > seen.logged && is_due {
                logged = Some((answer.clone(), iteration, changes - seen.logged));
                (seen.logged, seen.logged_ms) = (changes, Some(now.steady_ms));
            }
            seen.steps.answered(answer, now_unix_ms);
        }
        drop(guard);
        if let Some((answer, iteration, changes)) = logged {
            let reason = &answer.decision.reason;
            tracing::info!(%job_id, iteration, changes, reason, "the plan changed");
        }
        self.changes.send_replace(());
    }

    /// Logs a change of a worker.
    pub fn member(&self, now: Now, event: &MemberEvent) {
        let mut seen = self.lock();
        if matches!(event.kind, MemberEventKind::Joined(_)) {
            seen.facts.past.joined_unix_ms = Some(now.unix_ms);
            seen.facts.active_ms = now.steady_ms;
        }
        seen.log.member(now.unix_ms, event);
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
                "{worker} is slow: {:.0} % of its usual speed since iteration {}; {}",
                100.0 * view.speed_ratio,
                view.since_iteration,
                view.detail
            );
            let since = seen.reported_from(view.since_iteration).unwrap_or(now_unix_ms);
            seen.slow_since.insert(worker.clone(), since);
            seen.log.write(now_unix_ms, LogKind::Slow, Some(worker), text);
        }
        for worker in seen.slow.keys().filter(|worker| !slow.contains_key(*worker)) {
            let text = format!("{worker} is not slow any more");
            seen.log.write(now_unix_ms, LogKind::Recovered, Some(worker), text);
        }
        let is_changed = seen.slow.keys().ne(slow.keys());
        seen.changed += u64::from(is_changed);
        seen.slow_since.retain(|worker, _| slow.contains_key(worker));
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
        let text = format!("{} retrained", count(networks, "forecasting network"));
        seen.log.write(now_unix_ms, LogKind::Refitted, None, text);
        drop(seen);
        self.changes.send_replace(());
    }

    /// Approximate memory of the latest iterations, in bytes.
    pub fn bytes(&self) -> u64 {
        self.lock().steps.bytes()
    }

    /// Records why the job cannot be read or planned; `None` if it can.
    pub fn unreadable(&self, reason: Option<String>) {
        self.lock().facts.unreadable = reason;
        self.changes.send_replace(());
    }

    /// Notifies readers that the job was deleted or given up.
    pub fn gone(&self) {
        self.changes.send_replace(());
    }

    /// The facts that determine the state of the job.
    pub fn facts(&self) -> Facts {
        self.lock().facts.clone()
    }

    /// Time at which the job was created, in milliseconds since 1970.
    pub fn created_unix_ms(&self) -> i64 {
        self.lock().facts.past.created_unix_ms
    }

    /// The account of all iterations; see [`Seen::account`].
    pub fn account(&self) -> Option<Account> {
        self.lock().account()
    }

    /// The number of live workers.
    pub fn width(&self) -> usize {
        self.lock().workers.len()
    }

    /// The live workers.
    pub fn live_workers(&self) -> Vec<WorkerId> {
        self.lock().workers.keys().cloned().collect()
    }

    /// Records the live workers, their ranks and devices.
    pub fn members(&self, state: &JobState, now: Now) {
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
        seen.slow.retain(|worker, _| seen.workers.contains_key(worker));
        seen.summarize(state, now);
        drop(guard);
        self.changes.send_replace(());
    }

    /// Records that a worker joined. The ranks of the others stay.
    pub fn joined(&self, state: &JobState, worker: &WorkerId, now: Now) {
        let mut seen = self.lock();
        let tally = seen.workers.entry(worker.clone()).or_default();
        tally.rank = state.members.live().position(|live| live == worker).unwrap_or_default();
        tally.device = state.workers.get(worker).and_then(|known| known.request.device.clone());
        seen.summarize(state, now);
        drop(seen);
        self.changes.send_replace(());
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

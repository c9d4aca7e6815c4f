//! Live statistics and log of a job, without their lock.

use std::collections::BTreeMap;

use evenstep_core::attempts::{Attempts, Iteration};
use evenstep_core::job::JobState;
use evenstep_protocol::{StragglerView, WorkerId, WorkerOverride};

use super::account::{Account, EvenStep, IterationTimes};
use super::log::Log;
use super::status::{Facts, Status};
use super::steps::{Means, Step, Steps};
use super::tally::Tally;
use super::totals::Totals;
use crate::clock::Now;

/// The live statistics and the log of a job.
#[derive(Debug, Default)]
pub struct Seen {
    pub facts: Facts,
    pub members: Option<MembersSummary>,
    /// The attempts of the run. All other iterations here are positions.
    pub attempts: Attempts,
    pub steps: Steps,
    /// Means of the iterations that are not in memory any more.
    pub means: Option<Means>,
    /// Reason of the latest decision, if its allocation is not in memory.
    pub reason: Option<String>,
    /// Iterations that ended while this predictor followed the job.
    pub account: Account,
    /// The first of these iterations.
    pub account_from: Option<u64>,
    /// The last of these iterations.
    pub account_to: Option<u64>,
    /// Iterations from before; `None` until they are read from the store.
    pub earlier: Option<Totals>,
    /// The end of the latest of these iterations.
    pub until: u64,
    /// Number of iterations that ended while this predictor followed the job, and this number when totals were stored.
    pub closed: u64,
    pub stored: u64,
    /// Time of the steady clock from which on the job may be restored, after that failed.
    pub restorable_ms: Option<i64>,
    pub workers: BTreeMap<WorkerId, Tally>,
    /// Totals over all workers, also those that have left, so that they never fall.
    pub total: Tally,
    /// Workers that are slow now.
    pub slow: BTreeMap<WorkerId, StragglerView>,
    /// The times since which they are, in milliseconds since 1970.
    pub slow_since: BTreeMap<WorkerId, i64>,
    pub log: Log,
    /// Number of changes of workers, job options or overrides.
    pub changed: u64,
    pub refitted_unix_ms: Option<i64>,
    pub sums: Sums,
    /// Number of plan changes at the time of the latest log message about them.
    pub logged: u64,
    pub logged_ms: Option<i64>,
}

/// Sums over the iterations that ended while this predictor followed the job, in seconds. Unlike the blocks of an account, they
/// never fall, not even by a rounding error.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sums {
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
    pub fn add(&mut self, took_s: f64, even: EvenStep, weight: f64) {
        let is_sum = |seconds: f64| (weight * seconds).is_finite() && seconds > 0.0;
        if is_sum(took_s) && is_sum(even.even_s) {
            self.measured_s += weight * took_s;
            self.even_s += weight * even.even_s;
        }
    }

    /// Adds the waits of such an iteration.
    pub fn add_waits(&mut self, times: IterationTimes, weight: f64) {
        let Some(waited_s) = times.waited_s else { return };
        if (weight * (times.took_s + waited_s)).is_finite() && times.took_s > 0.0 && waited_s >= 0.0 {
            self.stepped_s += weight * times.took_s;
            self.waited_s += weight * waited_s;
        }
    }
}

/// The summary of a job's workers.
#[derive(Debug, Clone)]
pub struct MembersSummary {
    pub live: u64,
    pub departed: u64,
    pub global_batch: u64,
    pub unit: String,
    /// Live workers that an operator paused or pinned.
    pub overrides: BTreeMap<WorkerId, WorkerOverride>,
}

impl Seen {
    /// Records the number of workers, and that they or the job options changed.
    pub fn summarize(&mut self, state: &JobState, now: Now) {
        self.facts.members(state, now);
        self.attempts = state.attempts.clone();
        let live = self.facts.live;
        let overrides = state.members.live().filter_map(|worker| {
            let of = state.workers.get(worker)?.operator_override.as_ref()?;
            (of.paused || of.pinned_local_batch.is_some()).then(|| (worker.clone(), of.clone()))
        });
        self.members = Some(MembersSummary {
            live,
            departed: state.members.all().len() as u64 - live,
            global_batch: state.global_batch(),
            unit: state.spec.unit.clone(),
            overrides: overrides.collect(),
        });
        self.changed += 1;
    }

    /// The unit of batches.
    pub fn unit(&self) -> &str {
        self.members.as_ref().map_or("samples", |members| &members.unit)
    }

    /// The state of the job at this time.
    pub fn status(&self, now: Now) -> Status {
        self.facts.status(now)
    }

    /// The account of all iterations; `None` until the earlier ones are restored, because the account of the later ones
    /// is not the job's.
    pub fn account(&self) -> Option<Account> {
        let mut account = self.earlier.as_ref()?.account.clone();
        account.append(&self.account);
        Some(account)
    }

    /// Means over the latest completed iterations, also of those that are not in memory any more.
    pub fn means(&self) -> Option<Means> {
        self.steps.means().or(self.means)
    }

    /// The latest reported iteration and the time of its report, in milliseconds since 1970.
    pub fn reported(&self) -> Option<(u64, i64)> {
        let latest = self.steps.latest();
        latest.map(|step| (step.iteration(), step.at_unix_ms())).or(self.facts.past.reported)
    }

    /// Time at which the first iteration of this attempt in memory from this one on was reported, in milliseconds since 1970.
    pub fn reported_from(&self, iteration: u64) -> Option<i64> {
        let since = Iteration { attempt: self.attempts.current(), iteration };
        let is_after = |at| self.attempts.at(at) >= since;
        self.steps
            .iter()
            .find(|step| step.at_unix_ms() > 0 && is_after(step.iteration()))
            .map(Step::at_unix_ms)
    }

    /// Reason of the latest decision.
    pub fn reason(&self) -> Option<String> {
        let latest = self.steps.latest_answer().map(|answer| answer.decision.reason.clone());
        latest.or_else(|| self.reason.clone())
    }
}

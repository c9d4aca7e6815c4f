//! The latest iterations of a job: their allocations and reports.

use std::collections::VecDeque;
use std::sync::Arc;

use evenstep_core::job::EvenTime;
use evenstep_protocol::{AllocateResponse, Allocation, WorkerId, WorkerReport};
use serde::{Deserialize, Serialize};

use super::account::{EvenStep, IterationTimes};
use super::reported::{Reported, step_time_s};

/// Limit of iterations in memory. It is larger than the number of iterations that can be requested ahead.
const STEPS_MAX: usize = 160;
/// Iterations in memory of the jobs with the most workers.
const STEPS_MIN: usize = 4;
/// Approximate limit of shares in all iterations in memory. Jobs with many workers keep fewer iterations.
const SHARES_MAX: usize = 65_536;
/// Approximate memory of a share with its report, in bytes.
const SHARE_BYTES: usize = 336;
/// Number of iterations over which means are taken.
const MEAN_OVER: usize = 64;

/// An iteration.
#[derive(Debug)]
pub struct Step {
    answer: Arc<AllocateResponse>,
    /// Reports by rank; empty until the first report. Copied only if a report arrives while they are being stored.
    done: Arc<Vec<Option<Reported>>>,
    reported: usize,
    /// Ranks by worker, for reports whose rank is not known. Empty until the first such report.
    by_worker: Vec<usize>,
    at_unix_ms: i64,
    /// Time of the allocation, in milliseconds since 1970.
    answered_unix_ms: i64,
    /// True once every worker has reported, or any worker has reported a later iteration.
    is_over: bool,
    /// Number of reports when the iteration was stored for charts.
    stored: usize,
    /// Its time with even shares, once its reports were learned.
    even: Option<EvenTime>,
    /// Its step time with even shares from the store.
    restored: Option<EvenStep>,
    /// Number of iterations of its size that it stands for, once it is over.
    weight: Option<f64>,
    /// Whether its time with even shares was counted.
    is_counted: bool,
}

/// A completed iteration that is not stored for charts as it is now.
#[derive(Debug)]
pub struct Unstored {
    /// Its allocation.
    pub answer: Arc<AllocateResponse>,
    /// Its reports, by rank.
    pub done: Arc<Vec<Option<Reported>>>,
    /// Time of the allocation, in milliseconds since 1970.
    pub answered_unix_ms: i64,
    /// Its step time with even shares.
    pub even: Option<EvenStep>,
    reported: usize,
}

impl Step {
    /// Returns the rank of a worker, which is `hint` unless workers departed since. After a departure all the
    /// later workers miss their hint, so a search through the shares for each of them would be quadratic.
    fn rank(&mut self, worker: &WorkerId, hint: usize) -> Option<usize> {
        let shares = &self.answer.allocations;
        if shares.get(hint).is_some_and(|share| share.worker == *worker) {
            return Some(hint);
        }
        if self.by_worker.is_empty() {
            self.by_worker = (0..shares.len()).collect();
            self.by_worker.sort_by_key(|rank| &shares[*rank].worker);
        }
        let at = self.by_worker.binary_search_by_key(&worker, |rank| &shares[*rank].worker).ok()?;
        self.by_worker.get(at).copied()
    }

    /// Time of the whole step if a worker reported it, else the longest step time of any worker, in seconds; `None` before
    /// the first report.
    pub fn step_time_s(&self) -> Option<f64> {
        step_time_s(self.done.iter().flatten())
    }

    fn samples(&self) -> u64 {
        self.done.iter().flatten().map(|done| done.samples).sum()
    }

    /// The times of the iteration without an estimate for even shares; `None` before the first report.
    fn times(&self) -> Option<IterationTimes> {
        let waits = self.done.iter().flatten().filter_map(|done| done.barrier_wait_s);
        let iterations = self.done.iter().flatten().find_map(|done| done.iterations);
        Some(IterationTimes { took_s: self.step_time_s()?, waited_s: mean(waits), even: None, iterations })
    }

    /// Estimated step time with even shares; `None` until the reports were learned.
    pub fn even(&self) -> Option<EvenStep> {
        let Some(EvenTime { finish_s, even_finish_s, doubt_s, .. }) = self.even else { return self.restored };
        // Communication, optimizer and other parts of the step are the same.
        Some(EvenStep { even_s: self.step_time_s()? - finish_s + even_finish_s, doubt_s })
    }

    /// The number of the iteration.
    pub fn iteration(&self) -> u64 {
        self.answer.iteration
    }

    /// Time of the latest report, in milliseconds since 1970.
    pub fn at_unix_ms(&self) -> i64 {
        self.at_unix_ms
    }

    /// The allocation that it was computed with.
    pub fn answer(&self) -> &AllocateResponse {
        &self.answer
    }

    /// The report of the worker of this rank.
    pub fn report(&self, rank: usize) -> Option<Reported> {
        self.done.get(rank).copied().flatten()
    }
}

/// Means over the latest completed iterations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Means {
    /// Mean step time, in seconds.
    pub step_time_s: f64,
    /// Samples over the sum of the step times.
    pub samples_per_s: f64,
    /// Mean of |actual - predicted| / predicted speed; `None` before the first prediction.
    pub error_ratio: Option<f64>,
}

/// The latest iterations, in order.
#[derive(Debug, Default)]
pub struct Steps {
    steps: VecDeque<Step>,
    /// Whether iterations were completed, or reported later, since all were stored.
    has_unstored: bool,
}

impl Steps {
    /// Approximate memory, in bytes.
    pub fn bytes(&self) -> u64 {
        let shares: usize = self.steps.iter().map(|step| step.answer.allocations.len()).sum();
        (shares * SHARE_BYTES) as u64
    }

    /// Adds an allocation, or replaces the one of the same iteration.
    pub fn answered(&mut self, answer: Arc<AllocateResponse>, now_unix_ms: i64) {
        self.insert(answer, now_unix_ms);
    }

    /// The completed iterations that are not stored for charts as they are now.
    pub fn unstored(&self) -> Vec<Unstored> {
        let unstored = |step: &&Step| self.has_unstored && step.is_over && step.stored != step.reported;
        // Pointers only, because requests wait for the lock meanwhile.
        let copy = |step: &Step| Unstored {
            answer: step.answer.clone(),
            done: step.done.clone(),
            answered_unix_ms: step.answered_unix_ms,
            even: step.even(),
            reported: step.reported,
        };
        self.steps.iter().filter(unstored).map(copy).collect()
    }

    /// Records that these iterations were stored.
    pub fn stored(&mut self, stored: &[Unstored]) {
        for of in stored {
            let found = self.steps.binary_search_by_key(&of.answer.iteration, Step::iteration);
            if let Some(step) = found.ok().and_then(|at| self.steps.get_mut(at)) {
                // Another allocation of the iteration may have replaced this one.
                // So may an estimate have come.
                let is_same = Arc::ptr_eq(&step.answer, &of.answer) && of.even == step.even();
                step.stored = if is_same { of.reported } else { 0 };
            }
        }
        self.has_unstored = self.steps.iter().any(|step| step.is_over && step.stored != step.reported);
    }

    /// The first iteration that some workers have reported and that is not complete.
    pub fn first_open(&self) -> Option<u64> {
        self.steps.iter().find(|step| step.reported > 0 && !step.is_over).map(Step::iteration)
    }

    /// Records that these iterations, in order, are stored for charts as they are now.
    pub fn all_stored(&mut self, iterations: &[u64]) {
        for step in &mut self.steps {
            if iterations.binary_search(&step.iteration()).is_ok() {
                step.stored = step.reported;
            }
        }
    }

    /// Drops iterations that are not complete, because the run has returned to an earlier one.
    pub fn abandon_open(&mut self) {
        self.steps.retain(|step| step.is_over);
    }

    fn insert(&mut self, answer: Arc<AllocateResponse>, answered_unix_ms: i64) {
        let most = (SHARES_MAX / answer.allocations.len().max(1)).clamp(STEPS_MIN, STEPS_MAX);
        let at = self.steps.partition_point(|step| step.answer.iteration < answer.iteration);
        let (done, by_worker) = (Arc::default(), Vec::new());
        let step = Step {
            answer,
            done,
            reported: 0,
            by_worker,
            at_unix_ms: 0,
            answered_unix_ms,
            is_over: false,
            stored: 0,
            even: None,
            restored: None,
            weight: None,
            is_counted: false,
        };
        match self.steps.get_mut(at) {
            // The earlier allocation is void, and so are the reports about it.
            Some(before) if before.answer.iteration == step.answer.iteration => *before = step,
            _ => self.steps.insert(at, step),
        }
        while self.steps.len() > most {
            self.steps.pop_front();
        }
    }

    /// Adds a report. Returns the worker's share of the iteration if the iteration is still in memory.
    pub fn reported(&mut self, report: &WorkerReport, now_unix_ms: i64, hint: usize) -> Option<&Allocation> {
        let find =
            |steps: &Self| steps.steps.binary_search_by_key(&report.iteration, |step| step.answer.iteration);
        let at = match find(self) {
            Ok(at) => at,
            // Clients may report other iterations than those that they request: an allocation holds until the next one.
            Err(at) => {
                let Step { answer, answered_unix_ms, .. } = self.steps.get(at.checked_sub(1)?)?;
                let held = AllocateResponse { iteration: report.iteration, ..(**answer).clone() };
                self.insert(Arc::new(held), *answered_unix_ms);
                find(self).ok()?
            }
        };
        let step = self.steps.get_mut(at)?;
        let rank = step.rank(&report.worker, hint)?;
        let done = Arc::make_mut(&mut step.done);
        done.resize(step.answer.allocations.len(), None);
        // A repeated report replaces the earlier one and does not count again.
        step.reported += usize::from(done.get(rank)?.is_none());
        done[rank] = Some(Reported::of(report));
        step.at_unix_ms = now_unix_ms;
        // A late report of a complete iteration: charts must show it, too.
        self.has_unstored |= step.is_over;
        self.steps.get(at)?.answer.allocations.get(rank)
    }

    /// Marks completed iterations: iterations that every worker reported, and those before them or before any
    /// reported iteration. Returns the numbers and times of the iterations completed since the last call.
    pub fn close(&mut self) -> Vec<(u64, IterationTimes)> {
        let Some(newest) = self.steps.iter().rposition(|step| step.reported > 0) else { return Vec::new() };
        let mut closed = Vec::new();
        for (at, step) in self.steps.iter_mut().enumerate().take(newest + 1) {
            let is_whole = step.reported == step.answer.allocations.len();
            // Workers report in order: what is missing before a reported iteration was lost, or its worker left.
            if !step.is_over && step.reported > 0 && (is_whole || at < newest) {
                step.is_over = true;
                self.has_unstored = true;
                closed.extend(step.times().map(|times| (step.iteration(), times)));
            }
        }
        closed
    }

    /// Records the times with even shares of iterations whose reports were learned. Iterations that are not in memory any
    /// more are not counted.
    pub fn learned(&mut self, even: &[EvenTime]) {
        for even in even {
            let found = self.steps.binary_search_by_key(&even.iteration, Step::iteration);
            if let Some(step) = found.ok().and_then(|at| self.steps.get_mut(at)) {
                step.even = Some(*even);
                // It may have been stored without.
                step.stored = 0;
                self.has_unstored |= step.is_over;
            }
        }
    }

    /// Restores the step time with even shares of an iteration.
    pub fn restore_even(&mut self, iteration: u64, even: Option<EvenStep>) {
        let found = self.steps.binary_search_by_key(&iteration, Step::iteration);
        if let Some(step) = found.ok().and_then(|at| self.steps.get_mut(at)) {
            step.restored = even;
        }
    }

    /// Records how many iterations of its size a completed iteration stands for.
    pub fn weigh(&mut self, iteration: u64, weight: f64) {
        let found = self.steps.binary_search_by_key(&iteration, Step::iteration);
        if let Some(step) = found.ok().and_then(|at| self.steps.get_mut(at)) {
            step.weight = Some(weight);
        }
    }

    /// Returns step time, time with even shares and weight of the completed iterations whose time with even shares became
    /// known since the last call.
    pub fn take_even(&mut self) -> Vec<(f64, EvenStep, f64)> {
        let take = |step: &mut Step| {
            // The weight is known when the iteration is over, its time with even shares when its reports are learned: either may be
            // first.
            let weight = step.weight.filter(|_| !step.is_counted && step.even.is_some())?;
            let even = (step.step_time_s()?, step.even()?, weight);
            step.is_counted = true;
            Some(even)
        };
        self.steps.iter_mut().filter_map(take).collect()
    }

    /// The latest completed iteration.
    pub fn latest(&self) -> Option<&Step> {
        self.steps.iter().rev().find(|step| step.is_over)
    }

    /// The latest completed iteration, but not the ragged end of an epoch: it is smaller than the one before it, and its
    /// speeds are those of small batches.
    pub fn latest_full(&self) -> Option<&Step> {
        let mut over = self.steps.iter().rev().filter(|step| step.is_over);
        let latest = over.next()?;
        let is_full = |step: &&Step| {
            step.answer.generation == latest.answer.generation
                && step.answer.global_batch > latest.answer.global_batch
        };
        over.next().filter(is_full).or(Some(latest))
    }

    /// The iterations in memory, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Step> {
        self.steps.iter()
    }

    /// The latest allocation.
    pub fn latest_answer(&self) -> Option<&AllocateResponse> {
        self.steps.back().map(|step| &*step.answer)
    }

    /// Number of iterations that have room for this number of workers.
    pub fn room(workers: usize) -> u64 {
        // A quarter, so that restored iterations are not dropped for the first new ones.
        (SHARES_MAX / 4 / workers.max(1)).clamp(STEPS_MIN, MEAN_OVER) as u64
    }

    /// Whether no allocation is in memory.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Means over the latest completed iterations.
    pub fn means(&self) -> Option<Means> {
        let (mut steps, mut step_time_s, mut samples) = (0.0, 0.0, 0);
        let (mut errors, mut predicted) = (0.0, 0.0);
        for step in self.steps.iter().rev().filter(|step| step.is_over).take(MEAN_OVER) {
            steps += 1.0;
            step_time_s += step.step_time_s().unwrap_or(0.0);
            // Those computed, not those planned: a tail moves samples between workers.
            samples += step.samples();
            for (share, done) in step.answer.allocations.iter().zip(&*step.done) {
                let Some(done) = done else { continue };
                if let (Some(expected), Some(actual)) = (share.predicted_speed_samples_per_s, done.speed()) {
                    errors += (actual / expected - 1.0).abs();
                    predicted += 1.0;
                }
            }
        }
        (step_time_s > 0.0).then(|| Means {
            step_time_s: step_time_s / steps,
            samples_per_s: samples as f64 / step_time_s,
            error_ratio: (predicted > 0.0).then(|| errors / predicted),
        })
    }
}

/// Returns the mean; `None` without values.
pub fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u64), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}

#[cfg(test)]
mod tests;

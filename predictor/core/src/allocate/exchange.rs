//! Exchanges of samples between two workers: how the split under uncertainty comes near its best.
//!
//! A worker that is often last gives to one that seldom would be, in passes over such pairs and in halving steps.

use super::quantum::Problem;
use super::scenarios::Scenarios;
use super::worker::{Communication, Share};

/// The first step, and the last one, is the largest batch over this; a quantum if that is more. The expected time is flat
/// near its minimum, so that finer steps gain nothing that counts.
const FIRST_STEP: u64 = 16;
/// See [`FIRST_STEP`].
const LAST_STEP: u64 = 64;

/// The most passes.
const PASSES: usize = 12;

/// Each giver is tried with this many takers; after this many givers without a gain a pass ends.
const TRIES: usize = 2;

/// A smaller gain is rounding.
const MIN_GAIN: f64 = 1e-12;

/// The three last workers of a scenario and when they finish: enough to know who is last without any two.
type Last = [(f64, usize); 3];

/// Exchanges, from these batches on, while that shortens the mean over scenarios of the time of the step.
pub(super) fn exchange(problem: &Problem<'_>, scenarios: &Scenarios, batches: Vec<u64>) -> Vec<u64> {
    let quanta = batches.iter().copied().max().unwrap_or(0) / problem.quantum;
    let mut step = (quanta / FIRST_STEP).max(1).next_power_of_two();
    let last_step = (quanta / LAST_STEP).max(1);
    let mut exchange = Exchange::new(problem, scenarios, batches);
    for _ in 0..PASSES {
        if exchange.pass(step * problem.quantum) {
            continue;
        }
        if step <= last_step {
            break;
        }
        step /= 2;
    }
    exchange.batches
}

/// Batches and who is last with them.
struct Exchange<'a> {
    problem: &'a Problem<'a>,
    scenarios: &'a Scenarios,
    communication: Vec<Communication>,
    batches: Vec<u64>,
    compute_s: Vec<f64>,
    last: Vec<Last>,
}

/// A change of one worker's batch: when it would finish in each scenario.
struct Change {
    worker: usize,
    finishes_s: Vec<f64>,
}

impl<'a> Exchange<'a> {
    fn new(problem: &'a Problem<'a>, scenarios: &'a Scenarios, batches: Vec<u64>) -> Self {
        let shares = problem.shares;
        let communication = shares.iter().map(|share| share.communication).collect();
        let compute_s: Vec<f64> =
            shares.iter().zip(&batches).map(|(share, batch)| share.curve.time(*batch)).collect();
        let last = scenarios.rows().map(|factors| last_of(shares, factors, &compute_s)).collect();
        Self { problem, scenarios, communication, batches, compute_s, last }
    }

    /// The sum over scenarios of the time of the step.
    fn sum_s(&self) -> f64 {
        self.last.iter().map(|last| last[0].0).sum()
    }

    /// Moves this many samples from one worker to another, for all pairs that it helps; no worker takes part twice. Returns
    /// whether it helped any.
    fn pass(&mut self, samples: u64) -> bool {
        let mut givers = self.relief(samples);
        givers.sort_unstable_by(by_change);
        let mut takers = self.burden(samples);
        takers.sort_unstable_by(by_change);
        let least = -MIN_GAIN * self.sum_s();
        let mut has_taken = vec![false; self.batches.len()];
        let (mut any, mut failed) = (false, 0);
        for (relief, giver) in givers {
            if failed == TRIES || relief >= 0.0 {
                break;
            }
            if has_taken[giver] {
                continue;
            }
            let giver = self.change(giver, self.batches[giver] - samples);
            let others = takers.iter().map(|(_, taker)| *taker).filter(|taker| *taker != giver.worker);
            let tried = others.take(TRIES).map(|taker| {
                let taker = self.change(taker, self.batches[taker] + samples);
                (self.gain(&giver, &taker), taker.worker)
            });
            match tried.min_by(by_change) {
                Some((change_s, taker)) if change_s < least => {
                    self.move_samples(giver.worker, taker, samples);
                    has_taken[taker] = true;
                    takers.retain(|(_, other)| *other != taker && *other != giver.worker);
                    any = true;
                }
                _ => failed += 1,
            }
        }
        any
    }

    fn move_samples(&mut self, giver: usize, taker: usize, samples: u64) {
        self.batches[giver] -= samples;
        self.batches[taker] += samples;
        for i in [giver, taker] {
            self.compute_s[i] = self.problem.shares[i].curve.time(self.batches[i]);
        }
        let shares = self.problem.shares;
        for (last, factors) in self.last.iter_mut().zip(self.scenarios.rows()) {
            if last.iter().any(|(_, i)| *i == giver || *i == taker) {
                *last = last_of(shares, factors, &self.compute_s);
            } else {
                let finish_s = shares[taker].communication.finish_s(factors[taker] * self.compute_s[taker]);
                insert(last, finish_s, taker);
            }
        }
    }

    /// By how much the sum of the maxima changes if a worker gives, for each that can.
    fn relief(&self, samples: u64) -> Vec<(f64, usize)> {
        let shares = self.problem.shares;
        let mut relief = vec![0.0; shares.len()];
        let less_s: Vec<f64> = (shares.iter().zip(&self.batches))
            .map(|(share, batch)| share.curve.time(batch.saturating_sub(samples)))
            .collect();
        for (last, factors) in self.last.iter().zip(self.scenarios.rows()) {
            let (latest_s, i) = last[0];
            let finish_s = shares[i].communication.finish_s(factors[i] * less_s[i]);
            relief[i] += finish_s.max(last[1].0) - latest_s;
        }
        let gives = |i: &usize| self.batches[*i] >= self.problem.floors[*i].saturating_add(samples);
        (0..shares.len()).filter(gives).map(|i| (relief[i], i)).collect()
    }

    /// By how much it changes if a worker takes, for each that can.
    fn burden(&self, samples: u64) -> Vec<(f64, usize)> {
        let shares = self.problem.shares;
        let mut burden = vec![0.0; shares.len()];
        let more_s: Vec<f64> = (shares.iter().zip(&self.batches))
            .map(|(share, batch)| share.curve.time(batch + samples))
            .collect();
        for (last, factors) in self.last.iter().zip(self.scenarios.rows()) {
            let latest_s = last[0].0;
            let each = factors.iter().zip(&more_s).zip(&self.communication).zip(burden.iter_mut());
            for (((factor, more_s), communication), burden) in each {
                let later_s = communication.finish_s(factor * more_s) - latest_s;
                // `f64::max` is several times as slow in this loop.
                *burden += if later_s > 0.0 { later_s } else { 0.0 };
            }
        }
        let takes = |i: &usize| self.batches[*i] + samples <= self.problem.caps[*i];
        (0..shares.len()).filter(takes).map(|i| (burden[i], i)).collect()
    }

    fn change(&self, worker: usize, batch: u64) -> Change {
        let share = &self.problem.shares[worker];
        let compute_s = share.curve.time(batch);
        let finish_s = |factors: &[f64]| share.communication.finish_s(factors[worker] * compute_s);
        Change { worker, finishes_s: self.scenarios.rows().map(finish_s).collect() }
    }

    /// By how much the sum of the maxima changes with both changes.
    fn gain(&self, a: &Change, b: &Change) -> f64 {
        let finishes = a.finishes_s.iter().zip(&b.finishes_s).zip(&self.last);
        finishes.map(|((x, y), last)| x.max(*y).max(without(last, a.worker, b.worker)) - last[0].0).sum()
    }
}

fn by_change(a: &(f64, usize), b: &(f64, usize)) -> std::cmp::Ordering {
    a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
}

fn last_of(shares: &[Share], factors: &[f64], compute_s: &[f64]) -> Last {
    let mut last = [(f64::NEG_INFINITY, usize::MAX); 3];
    for (i, ((share, factor), compute_s)) in shares.iter().zip(factors).zip(compute_s).enumerate() {
        insert(&mut last, share.communication.finish_s(factor * compute_s), i);
    }
    last
}

fn insert(last: &mut Last, finish_s: f64, worker: usize) {
    if finish_s > last[2].0 {
        last[2] = (finish_s, worker);
        if last[2].0 > last[1].0 {
            last.swap(1, 2);
        }
        if last[1].0 > last[0].0 {
            last.swap(0, 1);
        }
    }
}

/// When the last worker finishes but for these two.
fn without(last: &Last, a: usize, b: usize) -> f64 {
    last.iter().find(|(_, i)| *i != a && *i != b).map_or(f64::NEG_INFINITY, |(finish_s, _)| *finish_s)
}

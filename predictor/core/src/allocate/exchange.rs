//! Exchanges of whole quanta between two workers: the last phase of the split under uncertainty when batches
//! have few quanta.
//!
//! Samples move from a worker that is often the slowest to one that rarely is. Each time the best of a few
//! pairs is chosen, and the number of samples is halved step by step.

use super::quantum::Problem;
use super::scenarios::Scenarios;

/// Number of giving workers, and of receiving workers, that are tried in one round.
const PAIRS: usize = 4;

/// Smaller relative gains are rounding errors.
const MIN_GAIN: f64 = 1e-12;

/// The three slowest workers of a scenario with their finish times. Three are enough to know the slowest
/// after any two workers are excluded.
type Last = [(f64, usize); 3];

/// Maximum number of rounds, whether an exchange is made or not.
const MAX_EXCHANGES: usize = 64;

/// Exchanges samples between workers, starting from these batches, as long as the mean step time over the
/// scenarios decreases.
pub(super) fn exchange(problem: &Problem<'_>, scenarios: &Scenarios, batches: Vec<u64>) -> Vec<u64> {
    let largest = batches.iter().copied().max().unwrap_or(0);
    let mut steps = (largest / problem.quantum / 4).max(1).next_power_of_two();
    let mut exchange = Exchange::new(problem, scenarios, batches);
    for _ in 0..MAX_EXCHANGES {
        if exchange.improve(steps * problem.quantum) {
            continue;
        }
        if steps == 1 {
            break;
        }
        steps /= 2;
    }
    exchange.batches
}

/// The current batches and the slowest workers of each scenario.
struct Exchange<'a> {
    problem: &'a Problem<'a>,
    scenarios: &'a Scenarios,
    batches: Vec<u64>,
    compute_s: Vec<f64>,
    last: Vec<Last>,
}

/// A change of one worker's batch, with its new finish time in each scenario.
struct Change {
    worker: usize,
    finishes_s: Vec<f64>,
}

impl<'a> Exchange<'a> {
    fn new(problem: &'a Problem<'a>, scenarios: &'a Scenarios, batches: Vec<u64>) -> Self {
        let compute_s: Vec<f64> =
            problem.shares.iter().zip(&batches).map(|(share, batch)| share.curve.time(*batch)).collect();
        let last = scenarios.rows().map(|factors| last_of(factors, &compute_s)).collect();
        Self { problem, scenarios, batches, compute_s, last }
    }

    /// Returns the sum over scenarios of the step time.
    fn sum_s(&self) -> f64 {
        self.last.iter().map(|last| last[0].0).sum()
    }

    /// Moves `samples` samples from one worker to another, the best of a few pairs. Returns whether that
    /// reduced the time.
    fn improve(&mut self, samples: u64) -> bool {
        let givers = first_few(self.giving_changes(samples));
        let takers = first_few(self.receiving_changes(samples));
        let givers: Vec<Change> =
            givers.into_iter().map(|i| self.change(i, self.batches[i] - samples)).collect();
        let takers: Vec<Change> =
            takers.into_iter().map(|i| self.change(i, self.batches[i] + samples)).collect();
        let pairs = givers.iter().flat_map(|giver| takers.iter().map(move |taker| (giver, taker)));
        let best = pairs
            .filter(|(giver, taker)| giver.worker != taker.worker)
            .map(|(giver, taker)| (self.gain(giver, taker), giver, taker))
            .min_by(|a, b| a.0.total_cmp(&b.0).then((a.1.worker, a.2.worker).cmp(&(b.1.worker, b.2.worker))));
        match best {
            Some((sum_s, giver, taker)) if sum_s < -MIN_GAIN * self.sum_s() => {
                let (giver, taker) = (giver.worker, taker.worker);
                self.set(giver, self.batches[giver] - samples);
                self.set(taker, self.batches[taker] + samples);
                self.rank(giver, taker);
                true
            }
            _ => false,
        }
    }

    fn set(&mut self, worker: usize, batch: u64) {
        self.batches[worker] = batch;
        self.compute_s[worker] = self.problem.shares[worker].curve.time(batch);
    }

    /// Updates the slowest workers of each scenario after these two workers changed.
    fn rank(&mut self, giver: usize, taker: usize) {
        for (last, factors) in self.last.iter_mut().zip(self.scenarios.rows()) {
            if last.iter().any(|(_, i)| *i == giver || *i == taker) {
                *last = last_of(factors, &self.compute_s);
            } else {
                insert(last, factors[taker] * self.compute_s[taker], taker);
            }
        }
    }

    /// Returns the change of the sum of step times for each worker that can give samples.
    fn giving_changes(&self, samples: u64) -> Vec<(f64, usize)> {
        let shares = self.problem.shares;
        let mut giving_changes = vec![0.0; shares.len()];
        let less_s: Vec<f64> = (shares.iter().zip(&self.batches))
            .map(|(share, batch)| share.curve.time(batch.saturating_sub(samples)))
            .collect();
        for (last, factors) in self.last.iter().zip(self.scenarios.rows()) {
            let (latest_s, i) = last[0];
            giving_changes[i] += (factors[i] * less_s[i]).max(last[1].0) - latest_s;
        }
        let gives = |i: &usize| self.batches[*i] >= self.problem.floors[*i].saturating_add(samples);
        (0..shares.len()).filter(gives).map(|i| (giving_changes[i], i)).collect()
    }

    /// Returns the change of the sum of step times for each worker that can receive samples.
    fn receiving_changes(&self, samples: u64) -> Vec<(f64, usize)> {
        let shares = self.problem.shares;
        let mut receiving_changes = vec![0.0; shares.len()];
        let more_s: Vec<f64> = (shares.iter().zip(&self.batches))
            .map(|(share, batch)| share.curve.time(batch + samples))
            .collect();
        for (last, factors) in self.last.iter().zip(self.scenarios.rows()) {
            let latest_s = last[0].0;
            let each = factors.iter().zip(&more_s).zip(receiving_changes.iter_mut());
            for ((factor, more_s), receiving_changes) in each {
                *receiving_changes += (factor * more_s - latest_s).max(0.0);
            }
        }
        let takes = |i: &usize| self.batches[*i] + samples <= self.problem.caps[*i];
        (0..shares.len()).filter(takes).map(|i| (receiving_changes[i], i)).collect()
    }

    fn change(&self, worker: usize, batch: u64) -> Change {
        let compute_s = self.problem.shares[worker].curve.time(batch);
        let finish_s = |factors: &[f64]| factors[worker] * compute_s;
        Change { worker, finishes_s: self.scenarios.rows().map(finish_s).collect() }
    }

    /// Returns the change of the sum of step times if both changes are made.
    fn gain(&self, a: &Change, b: &Change) -> f64 {
        let finishes = a.finishes_s.iter().zip(&b.finishes_s).zip(&self.last);
        finishes.map(|((x, y), last)| x.max(*y).max(without(last, a.worker, b.worker)) - last[0].0).sum()
    }
}

fn first_few(mut changes: Vec<(f64, usize)>) -> Vec<usize> {
    let order = |a: &(f64, usize), b: &(f64, usize)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
    if changes.len() > PAIRS {
        changes.select_nth_unstable_by(PAIRS - 1, order);
        changes.truncate(PAIRS);
    }
    changes.into_iter().map(|(_, i)| i).collect()
}

fn last_of(factors: &[f64], compute_s: &[f64]) -> Last {
    let mut last = [(f64::NEG_INFINITY, usize::MAX); 3];
    for (i, (factor, compute_s)) in factors.iter().zip(compute_s).enumerate() {
        insert(&mut last, factor * compute_s, i);
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

/// Returns the finish time of the slowest worker, ignoring workers `a` and `b`.
fn without(last: &Last, a: usize, b: usize) -> f64 {
    last.iter().find(|(_, i)| *i != a && *i != b).map_or(f64::NEG_INFINITY, |(finish_s, _)| *finish_s)
}

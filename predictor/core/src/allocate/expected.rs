//! The split under uncertainty: the smallest expected maximum, not the smallest maximum of expectations.
//!
//! Over scenarios w with factors `f_wi` the expected time of the step is `mean_w max_i finish_i(f_wi *
//! curve_i(x_i))`: a sample average of a stochastic program (Kleywegt, Shapiro, Homem-de-Mello 2002). It is convex
//! where the curves are. From the min-max split on, a worker that is often last gives samples to one that seldom
//! would be, in halving steps, while that lowers the average. So the result is never worse than where it starts, and
//! not the exact optimum.

use super::{Infeasible, Scenarios, Share, allocate};

/// The most workers that are weighed against each other; more get the plain split.
pub const MAX_WORKERS: usize = 256;

/// The most moves, tried or made.
const MAX_MOVES: usize = 1024;

/// So many givers are tried with so many takers at a time.
const PAIRS: usize = 4;

/// A smaller gain is rounding.
const MIN_GAIN: f64 = 1e-12;

/// Splits `total` samples such that the expected time of the step over the scenarios is small: never larger than that
/// of [`allocate`], and its very split where there are no scenarios or more than [`MAX_WORKERS`] workers.
///
/// # Errors
/// As [`allocate`].
pub fn allocate_expected(
    shares: &[Share],
    scenarios: &Scenarios,
    total: u64,
    quantum: u64,
) -> Result<Vec<u64>, Infeasible> {
    let quantum = quantum.max(1);
    let plain = allocate(shares, total, quantum)?;
    if scenarios.is_empty() || shares.len() < 2 || shares.len() > MAX_WORKERS {
        return Ok(plain);
    }
    let largest = plain.iter().copied().max().unwrap_or(0);
    let mut steps = (largest / quantum / 4).max(1).next_power_of_two();
    let mut search = Search::new(shares, scenarios, plain.clone());
    for _ in 0..MAX_MOVES {
        if search.improve(steps * quantum) {
            continue;
        }
        if steps == 1 {
            break;
        }
        steps /= 2;
    }
    let expected = |batches: &[u64]| scenarios.expected_finish(shares, batches);
    Ok(if expected(&search.batches) < expected(&plain) { search.batches } else { plain })
}

/// The three last workers of a scenario and when they finish: enough to know who is last without any two.
type Last = [(f64, usize); 3];

struct Search<'a> {
    shares: &'a [Share],
    scenarios: &'a Scenarios,
    batches: Vec<u64>,
    last: Vec<Last>,
}

/// A change of one worker's batch: when it would finish in each scenario, and by how much the sum of the maxima would
/// change.
struct Change {
    worker: usize,
    finishes_s: Vec<f64>,
    sum_s: f64,
}

impl<'a> Search<'a> {
    fn new(shares: &'a [Share], scenarios: &'a Scenarios, batches: Vec<u64>) -> Self {
        let mut search = Self { shares, scenarios, batches, last: Vec::new() };
        search.rank();
        search
    }

    /// Finds who is last in each scenario.
    fn rank(&mut self) {
        let compute_s: Vec<f64> =
            self.shares.iter().zip(&self.batches).map(|(share, batch)| share.curve.time(*batch)).collect();
        let last = |factors: &[f64]| {
            let mut last: Last = [(f64::NEG_INFINITY, usize::MAX); 3];
            for (i, ((share, factor), compute_s)) in
                self.shares.iter().zip(factors).zip(&compute_s).enumerate()
            {
                let finish_s = share.communication.finish_s(factor * compute_s);
                if finish_s > last[2].0 {
                    last[2] = (finish_s, i);
                    if last[2].0 > last[1].0 {
                        last.swap(1, 2);
                    }
                    if last[1].0 > last[0].0 {
                        last.swap(0, 1);
                    }
                }
            }
            last
        };
        self.last = self.scenarios.rows().map(last).collect();
    }

    fn change(&self, worker: usize, batch: u64) -> Change {
        let share = &self.shares[worker];
        let compute_s = share.curve.time(batch);
        let finish_s = |factors: &[f64]| share.communication.finish_s(factors[worker] * compute_s);
        let finishes_s: Vec<f64> = self.scenarios.rows().map(finish_s).collect();
        let sum_s = finishes_s
            .iter()
            .zip(&self.last)
            .map(|(finish_s, last)| finish_s.max(without(last, worker, worker)) - last[0].0)
            .sum();
        Change { worker, finishes_s, sum_s }
    }

    /// Moves so many samples from one worker to another, the best of a few pairs, if that helps.
    fn improve(&mut self, samples: u64) -> bool {
        let workers = 0..self.shares.len();
        let gives = |i: &usize| self.batches[*i] >= self.shares[*i].floor.saturating_add(samples);
        let takes = |i: &usize| self.shares[*i].cap.is_none_or(|cap| self.batches[*i] + samples <= cap);
        let best = |mut changes: Vec<Change>| {
            changes.sort_by(|a, b| a.sum_s.total_cmp(&b.sum_s).then(a.worker.cmp(&b.worker)));
            changes.truncate(PAIRS);
            changes
        };
        let givers =
            best(workers.clone().filter(gives).map(|i| self.change(i, self.batches[i] - samples)).collect());
        let takers = best(workers.filter(takes).map(|i| self.change(i, self.batches[i] + samples)).collect());
        let pairs = givers.iter().flat_map(|giver| takers.iter().map(move |taker| (giver, taker)));
        let tried = pairs
            .filter(|(giver, taker)| giver.worker != taker.worker)
            .map(|(giver, taker)| (self.sum_of(giver, taker), giver.worker, taker.worker));
        let best = tried.min_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let now: f64 = self.last.iter().map(|last| last[0].0).sum();
        match best {
            Some((sum_s, giver, taker)) if sum_s < -MIN_GAIN * now => {
                self.batches[giver] -= samples;
                self.batches[taker] += samples;
                self.rank();
                true
            }
            _ => false,
        }
    }

    /// By how much the sum of the maxima changes with both changes.
    fn sum_of(&self, a: &Change, b: &Change) -> f64 {
        let finishes = a.finishes_s.iter().zip(&b.finishes_s).zip(&self.last);
        finishes.map(|((x, y), last)| x.max(*y).max(without(last, a.worker, b.worker)) - last[0].0).sum()
    }
}

/// When the last worker finishes but for these two.
fn without(last: &Last, a: usize, b: usize) -> f64 {
    last.iter().find(|(_, i)| *i != a && *i != b).map_or(f64::NEG_INFINITY, |(finish_s, _)| *finish_s)
}

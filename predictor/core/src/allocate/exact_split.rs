//! The exact min-max split: integers `x_i` that minimise `max_i finish_i(x_i)` with `sum x_i = total` exactly, floors,
//! caps, and every `x_i` a multiple of the quantum (LB-BSP, arXiv 1806.02508 and SoCC 2020).
//!
//! A search over the finish time T: at T worker i can do at most `u_i(T)` samples, a non-decreasing step function, so
//! the smallest T with `sum u_i(T) >= total` is the optimum. Samples that T allows beyond the total (workers that tie)
//! are not handed out: what would finish last, then the larger batch, then the higher rank goes without.
//!
//! Where the total is no multiple of the quantum (the ragged end of an epoch), one worker takes the remainder on top
//! of its multiples: the one that finishes it first.
//!
//! The work is put in one order: by the time at which a quantum is done, then by the batch that it completes, then by
//! rank. The optimal split is the first so many quanta of that order. A few secant steps on real-valued batches land
//! near it; from there the exact counts decide: the quanta that are missing, or too many, are found by a heap where
//! they are few and by halving between floating-point numbers where they are not.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::quantum::{Infeasible, Problem};
use super::worker::Share;
use crate::curve::Curve;

/// Secant steps at most; more do not help where many workers end at the very same moment.
const SECANT_STEPS: usize = 6;

/// Splits `total` samples.
///
/// # Errors
/// [`Infeasible`] where the floors take more, or the caps hold less, than the total.
pub fn allocate(shares: &[Share], total: u64, quantum: u64) -> Result<Vec<u64>, Infeasible> {
    let problem = Problem::new(shares, total, quantum)?;
    let mut batches = split(&problem);
    problem.add_remainder(&mut batches);
    Ok(batches)
}

/// The even split within bounds: equal speeds, whatever they are.
///
/// # Errors
/// As [`allocate`].
pub fn even(bounds: &[(u64, Option<u64>)], total: u64, quantum: u64) -> Result<Vec<u64>, Infeasible> {
    let share = |(floor, cap): &(u64, Option<u64>)| Share {
        floor: *floor,
        cap: *cap,
        ..Share::new(Curve::at_speed(1.0))
    };
    let shares: Vec<Share> = bounds.iter().map(share).collect();
    allocate(&shares, total, quantum)
}

/// When the last worker finishes: the time of the step.
pub fn finish_s(shares: &[Share], batches: &[u64]) -> f64 {
    shares.iter().zip(batches).map(|(share, batch)| share.finish_s(*batch)).fold(0.0, f64::max)
}

/// The optimal split of the whole quanta.
pub(super) fn split(problem: &Problem<'_>) -> Vec<u64> {
    let workers = problem.shares.len();
    let few = problem.quantum.saturating_mul(workers as u64);
    // `high` always holds the total, as the caps do; what is under `low` never does.
    let (mut low, mut high) = (0.0, f64::MAX);
    let mut time_s = near(problem).clamp(low, high);
    let mut batches = vec![0; workers];
    let mut halve = false;
    while low < high {
        let sum = problem.most_of_all(time_s, &mut batches);
        if sum.abs_diff(problem.whole) <= few {
            top_up(problem, &mut batches, problem.whole.saturating_sub(sum));
            take_back(problem, &mut batches, sum.saturating_sub(problem.whole));
            return batches;
        }
        // Where many workers end at the same moment, that moment is what is looked for: every other try is at the edge
        // of the latest, or the next, finish. The others halve, and end at the smallest time that there is.
        time_s = if sum > problem.whole {
            high = problem.latest(&batches).min(time_s);
            high.next_down()
        } else {
            low = problem.next(&batches).max(time_s.next_up());
            low
        };
        if halve {
            time_s = middle(low, high);
        }
        halve = !halve;
    }
    let mut least = vec![0; workers];
    problem.most_of_all(high.next_down(), &mut least);
    problem.most_of_all(high, &mut batches);
    level(&least, &batches, problem.whole, problem.quantum)
}

/// Half-way between two times, neither negative, in representable steps: positive floats order as their bits.
fn middle(low: f64, high: f64) -> f64 {
    let (low, high) = (low.to_bits(), high.to_bits());
    f64::from_bits(low + high.saturating_sub(low) / 2)
}

/// A time near the optimum: the root, on real-valued batches, of what all workers do by then less the total.
fn near(problem: &Problem<'_>) -> f64 {
    let target = problem.whole as f64;
    let even = (problem.whole / problem.shares.len() as u64).max(1);
    let rate: f64 =
        problem.shares.iter().map(|share| even as f64 / share.finish_s(even).max(f64::MIN_POSITIVE)).sum();
    let close = (problem.shares.len() as f64) * problem.quantum as f64;
    let (mut time_s, mut slope) = (target / rate, rate);
    let (mut low, mut high) = (0.0f64, f64::INFINITY);
    let mut before: Option<(f64, f64)> = None;
    for _ in 0..SECANT_STEPS {
        let missing = target - problem.nearly_all(time_s);
        if missing > 0.0 {
            low = time_s;
        } else {
            high = time_s;
        }
        if let Some((before_s, missing_before)) = before {
            let secant = (missing_before - missing) / (time_s - before_s);
            slope = if secant > 0.0 { secant } else { slope };
        }
        before = Some((time_s, missing));
        let next = time_s + missing / slope;
        time_s = match (next > low && next < high, high.is_finite()) {
            (true, _) => next,
            (false, true) => low + (high - low) / 2.0,
            (false, false) => 2.0 * low,
        };
        // From so near the step itself lands near enough.
        if missing.abs() <= close {
            break;
        }
    }
    if time_s.is_finite() { time_s } else { 0.0 }
}

impl Problem<'_> {
    /// The most whole quanta of every worker by `time_s`, and their sum.
    fn most_of_all(&self, time_s: f64, batches: &mut [u64]) -> u64 {
        let mut sum = 0u64;
        for (i, batch) in batches.iter_mut().enumerate() {
            *batch = self.most(i, time_s);
            sum = sum.saturating_add(*batch);
        }
        sum
    }

    /// When the last of the batches is done, of those that could be smaller.
    fn latest(&self, batches: &[u64]) -> f64 {
        let workers = (0..batches.len()).filter(|i| batches[*i] > self.floors[*i]);
        workers.map(|i| self.shares[i].finish_s(batches[i])).fold(0.0, f64::max)
    }

    /// When the first worker could be done with a quantum more.
    fn next(&self, batches: &[u64]) -> f64 {
        let workers = (0..batches.len()).filter(|i| batches[*i] + self.quantum <= self.caps[*i]);
        workers.map(|i| self.shares[i].finish_s(batches[i] + self.quantum)).fold(f64::INFINITY, f64::min)
    }

    /// What all workers do by `time_s`, to rounding and for real-valued batches; of each whose bounds leave it free
    /// half a quantum less, which is what whole quanta lose on average.
    fn nearly_all(&self, time_s: f64) -> f64 {
        let half = 0.5 * self.quantum as f64;
        let bounds = self.floors.iter().zip(&self.caps);
        let one = |(share, (floor, cap)): (&Share, (&u64, &u64))| {
            let amount = share.amount_within(time_s);
            if amount >= *cap as f64 { *cap as f64 } else { (amount - half).max(*floor as f64) }
        };
        self.shares.iter().zip(bounds).map(one).sum()
    }
}

/// Hands out `missing` samples more, the earliest quanta first.
fn top_up(problem: &Problem<'_>, batches: &mut [u64], mut missing: u64) {
    if missing == 0 {
        return;
    }
    let next = |i: usize, batch: u64| {
        let more = batch + problem.quantum;
        (more <= problem.caps[i]).then(|| Reverse((problem.shares[i].finish_s(more).to_bits(), more, i)))
    };
    let mut earliest: BinaryHeap<_> = (0..batches.len()).filter_map(|i| next(i, batches[i])).collect();
    while missing > 0 {
        let Some(Reverse((_, more, i))) = earliest.pop() else { return };
        batches[i] = more;
        missing -= problem.quantum;
        earliest.extend(next(i, more));
    }
}

/// Takes `surplus` samples back, the latest quanta first.
fn take_back(problem: &Problem<'_>, batches: &mut [u64], mut surplus: u64) {
    if surplus == 0 {
        return;
    }
    let last = |i: usize, batch: u64| {
        (batch > problem.floors[i]).then(|| (problem.shares[i].finish_s(batch).to_bits(), batch, i))
    };
    let mut latest: BinaryHeap<_> = (0..batches.len()).filter_map(|i| last(i, batches[i])).collect();
    while surplus > 0 {
        let Some((_, batch, i)) = latest.pop() else { return };
        batches[i] = batch - problem.quantum;
        surplus -= problem.quantum;
        latest.extend(last(i, batches[i]));
    }
}

/// Batches between `least` and `most`, of the given sum, whose largest is as small as can be: they are filled up to a
/// level, and of those that could pass it by a quantum the lower ranks do. All are multiples of the quantum.
fn level(least: &[u64], most: &[u64], total: u64, quantum: u64) -> Vec<u64> {
    let filled = |level: u64| least.iter().zip(most).map(move |(least, most)| level.clamp(*least, *most));
    let (mut low, mut high) = (0, most.iter().copied().max().unwrap_or(0) / quantum);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if filled(middle * quantum).fold(0u64, u64::saturating_add) <= total {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    let mut batches: Vec<u64> = filled(low * quantum).collect();
    let mut left = total.saturating_sub(batches.iter().fold(0u64, |sum, batch| sum.saturating_add(*batch)));
    for (batch, most) in batches.iter_mut().zip(most) {
        if left >= quantum && *batch == low * quantum && *batch < *most {
            *batch += quantum;
            left -= quantum;
        }
    }
    batches
}

//! The exact min-max split: integers `x_i` that minimise `max_i finish_i(x_i)` (LB-BSP, arXiv 1806.02508 and
//! SoCC 2020).
//!
//! The batches satisfy:
//! - their sum is exactly the total,
//! - each lies between its floor and its cap,
//! - each is a multiple of the quantum.
//!
//! The function searches the finish time T. At T, worker i can do at most `u_i(T)` samples, a non-decreasing
//! step function. The smallest T with `sum u_i(T) >= total` is the optimum. If workers tie, T allows more
//! samples than the total. Surplus samples are taken from the worker that would finish last, then from the
//! larger batch, then from the higher rank.
//!
//! If the total is not a multiple of the quantum, as at the ragged end of an epoch, one worker gets the
//! remainder on top of its multiples: the worker that finishes it first.
//!
//! The quanta are ordered by the time at which each is done, then by the batch that it completes, then by
//! rank. The optimal split is the first `total / quantum` quanta in this order. A few secant steps on
//! real-valued batches give a T close to the optimum. From there exact counts are used. If few quanta are
//! missing or surplus, a heap finds them; otherwise a bisection over floating-point numbers does.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::quantum::{Infeasible, Problem};
use super::worker::SplitWorker;
use crate::curve::Curve;

/// Maximum number of secant steps. More do not help if many workers finish at exactly the same time.
const SECANT_STEPS: usize = 6;

/// Returns the batches by rank that split `total` samples with the smallest maximum finish time.
///
/// # Errors
/// [`Infeasible`] if the floors add up to more, or the caps to less, than the total.
///
/// # Examples
/// ```
/// use evenstep_core::allocate::{SplitWorker, allocate, finish_s};
/// use evenstep_core::curve::Curve;
///
/// let shares = [1.0, 2.0, 2.0, 4.0].map(|samples_per_s| SplitWorker::new(Curve::at_speed(samples_per_s)));
/// let batches = allocate(&shares, 36, 1)?;
/// assert_eq!(batches, [4, 8, 8, 16]);
/// assert_eq!(finish_s(&shares, &batches), 4.0);
/// # Ok::<(), evenstep_core::allocate::Infeasible>(())
/// ```
pub fn allocate(shares: &[SplitWorker], total: u64, quantum: u64) -> Result<Vec<u64>, Infeasible> {
    let problem = Problem::new(shares, total, quantum)?;
    let mut batches = split(&problem);
    problem.add_remainder(&mut batches);
    Ok(batches)
}

/// Returns the even split within bounds: the exact split for workers of equal speed.
///
/// # Errors
/// [`Infeasible`] if the floors add up to more, or the caps to less, than the total.
///
/// # Examples
/// ```
/// // Floor and cap of each worker; the second has memory for two samples.
/// let batches = evenstep_core::allocate::even(&[(0, None), (0, Some(2)), (0, None)], 10, 1)?;
/// assert_eq!(batches, [4, 2, 4]);
/// # Ok::<(), evenstep_core::allocate::Infeasible>(())
/// ```
pub fn even(bounds: &[(u64, Option<u64>)], total: u64, quantum: u64) -> Result<Vec<u64>, Infeasible> {
    let share = |(floor, cap): &(u64, Option<u64>)| SplitWorker {
        floor: *floor,
        cap: *cap,
        ..SplitWorker::new(Curve::at_speed(1.0))
    };
    let shares: Vec<SplitWorker> = bounds.iter().map(share).collect();
    allocate(&shares, total, quantum)
}

/// Returns the finish time of the slowest worker in seconds: the step time.
pub fn finish_s(shares: &[SplitWorker], batches: &[u64]) -> f64 {
    shares.iter().zip(batches).map(|(share, batch)| share.finish_s(*batch)).fold(0.0, f64::max)
}

/// Returns the optimal split of the multiples of the quantum in the total.
pub(super) fn split(problem: &Problem<'_>) -> Vec<u64> {
    let workers = problem.shares.len();
    let few = problem.quantum.saturating_mul(workers as u64);
    // The workers can always finish the total by `high`, and never before `low`.
    let (mut low, mut high) = (0.0, f64::MAX);
    let mut time_s = near(problem).clamp(low, high);
    let mut batches = vec![0; workers];
    let mut halve = false;
    while low < high {
        let sum = problem.max_batches(time_s, &mut batches);
        if sum.abs_diff(problem.whole) <= few {
            add_missing(problem, &mut batches, problem.whole.saturating_sub(sum));
            remove_surplus(problem, &mut batches, sum.saturating_sub(problem.whole));
            return batches;
        }
        // If many workers end at the same time, the optimum is that time. So every other attempt is exactly
        // at the latest or at the next finish time. The attempts in between bisect, so the search ends at the
        // smallest time.
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
    problem.max_batches(high.next_down(), &mut least);
    problem.max_batches(high, &mut batches);
    level(&least, &batches, problem.whole, problem.quantum)
}

/// Returns the midpoint of two non-negative times, counted in representable numbers: the bits of positive
/// floats have the same order as their values.
fn middle(low: f64, high: f64) -> f64 {
    let (low, high) = (low.to_bits(), high.to_bits());
    f64::from_bits(low + high.saturating_sub(low) / 2)
}

/// Returns a time near the optimum: the root, for real-valued batches, of the samples that all workers finish
/// minus the total.
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
        let missing = target - problem.total_amount(time_s);
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
        // This close to the root, the step itself is accurate enough.
        if missing.abs() <= close {
            break;
        }
    }
    if time_s.is_finite() { time_s } else { 0.0 }
}

impl Problem<'_> {
    /// Stores the largest multiple of the quantum that each worker finishes by `time_s`, and returns their
    /// sum.
    fn max_batches(&self, time_s: f64, batches: &mut [u64]) -> u64 {
        let mut sum = 0u64;
        for (i, batch) in batches.iter_mut().enumerate() {
            *batch = self.most(i, time_s);
            sum = sum.saturating_add(*batch);
        }
        sum
    }

    /// Returns the latest finish time of the batches that are above their floors.
    fn latest(&self, batches: &[u64]) -> f64 {
        let workers = (0..batches.len()).filter(|i| batches[*i] > self.floors[*i]);
        workers.map(|i| self.shares[i].finish_s(batches[i])).fold(0.0, f64::max)
    }

    /// Returns the earliest time at which any worker could finish one more quantum.
    fn next(&self, batches: &[u64]) -> f64 {
        let workers = (0..batches.len()).filter(|i| batches[*i] + self.quantum <= self.caps[*i]);
        workers.map(|i| self.shares[i].finish_s(batches[i] + self.quantum)).fold(f64::INFINITY, f64::min)
    }

    /// Returns the samples that all workers finish by `time_s`, for real-valued batches and up to rounding.
    /// Half a quantum is subtracted for each worker that is not at a bound: rounding down loses that much on
    /// average.
    fn total_amount(&self, time_s: f64) -> f64 {
        let half = 0.5 * self.quantum as f64;
        let bounds = self.floors.iter().zip(&self.caps);
        let one = |(share, (floor, cap)): (&SplitWorker, (&u64, &u64))| {
            let amount = share.amount_within(time_s);
            if amount >= *cap as f64 { *cap as f64 } else { (amount - half).max(*floor as f64) }
        };
        self.shares.iter().zip(bounds).map(one).sum()
    }
}

/// Adds `missing` samples, in the order of the time at which each quantum is done.
fn add_missing(problem: &Problem<'_>, batches: &mut [u64], mut missing: u64) {
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

/// Removes `surplus` samples, the latest quanta first.
fn remove_surplus(problem: &Problem<'_>, batches: &mut [u64], mut surplus: u64) {
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

/// Returns batches between `least` and `most` that add up to `total`, with the largest batch as small as
/// possible.
///
/// The batches are filled up to a common level. Of those that could exceed it by one quantum, the lower ranks
/// do. All inputs are multiples of the quantum.
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

//! Split under uncertainty on real-valued batches, by a fixed-point iteration on a smoothed maximum.
//!
//! In each scenario a worker has a weight, called its blame: `finish_i^p / sum finish^p`. As p grows, the
//! slowest worker gets all of it. The blame of a worker over all scenarios, times the seconds that one more
//! sample takes on it, is the slope of the expected time along its batch. The expected time is smallest when
//! all slopes are equal.
//!
//! Each step divides every batch by the p-th root of its slope. The step is exact if only one worker changes
//! and compute time is proportional to the batch. p doubles after every few rounds: with a low p all
//! scenarios contribute to the slopes.

use std::ops::RangeInclusive;

use super::quantum::Problem;
use super::scenarios::Scenarios;
use super::worker::SplitWorker;

/// Exponents of 2 that give the successive values of p.
const SHARPNESS: RangeInclusive<u32> = 2..=6;

/// Rounds with each value of p.
const ROUNDS: u32 = 3;

/// Largest factor by which a round changes a batch, before all batches are scaled to the total.
const LARGEST_STEP: f64 = 2.0;

/// Width over which a slope is measured, as a share of an even batch; at least one quantum.
const SLOPE_SHARE: f64 = 0.02;

/// Maximum number of steps to scale batches to the total. Without bounds the first step is exact.
const SCALING_STEPS: usize = 32;

/// Returns the batches of the best round from `start` on: those with the smallest mean finish time of the
/// slowest worker over the scenarios. They are within the bounds and add up to the multiples of the quantum
/// in the total, up to rounding.
pub(super) fn blame(problem: &Problem<'_>, scenarios: &Scenarios, start: &[u64]) -> Vec<f64> {
    let mut batches: Vec<f64> = start.iter().map(|batch| *batch as f64).collect();
    let mut best = (f64::INFINITY, batches.clone());
    let mut rounds = Rounds::new(problem.shares);
    for sharpness in SHARPNESS {
        for _ in 0..ROUNDS {
            let sum_s = rounds.compute_gradients(scenarios, &batches, sharpness);
            if sum_s < best.0 {
                best = (sum_s, batches.clone());
            }
            step(problem, &mut batches, &rounds.gradients, sharpness);
            scale(problem, &mut batches);
        }
    }
    let sum_s = rounds.compute_gradients(scenarios, &batches, *SHARPNESS.end());
    if sum_s < best.0 { batches } else { best.1 }
}

/// Data by column, one entry per worker, so that the work for each scenario is a plain loop.
struct Rounds<'a> {
    shares: &'a [SplitWorker],
    compute_s: Vec<f64>,
    powers: Vec<f64>,
    /// Sums over scenarios of a worker's blame times its factor.
    gradients: Vec<f64>,
}

impl<'a> Rounds<'a> {
    fn new(shares: &'a [SplitWorker]) -> Self {
        let zeros = vec![0.0; shares.len()];
        Self { shares, compute_s: zeros.clone(), powers: zeros.clone(), gradients: zeros }
    }

    /// Computes the blame for these batches. Returns the sum over scenarios of the time of the slowest
    /// worker.
    fn compute_gradients(&mut self, scenarios: &Scenarios, batches: &[f64], sharpness: u32) -> f64 {
        for ((compute_s, share), batch) in self.compute_s.iter_mut().zip(self.shares).zip(batches) {
            *compute_s = share.curve.time_of(*batch);
        }
        self.gradients.fill(0.0);
        scenarios.rows().map(|factors| self.add_gradients(factors, sharpness)).sum()
    }

    fn add_gradients(&mut self, factors: &[f64], sharpness: u32) -> f64 {
        let columns = factors.iter().zip(&self.compute_s);
        for (power, (factor, compute_s)) in self.powers.iter_mut().zip(columns) {
            *power = factor * compute_s;
        }
        let latest_s = largest(&self.powers).max(f64::MIN_POSITIVE);
        let sum = raise(&mut self.powers, 1.0 / latest_s, sharpness);
        let part = 1.0 / sum;
        for (blame, (power, factor)) in self.gradients.iter_mut().zip(self.powers.iter().zip(factors)) {
            *blame += part * power * factor;
        }
        latest_s
    }
}

/// Returns the largest of positive values. It runs in four lanes because each call of `f64::max` in a row
/// depends on the one before.
fn largest(values: &[f64]) -> f64 {
    let (lanes, rest) = values.as_chunks::<4>();
    let larger = |a: f64, b: f64| if a > b { a } else { b };
    let mut tops = [0.0; 4];
    for lane in lanes {
        for (top, value) in tops.iter_mut().zip(lane) {
            *top = larger(*top, *value);
        }
    }
    tops.iter().chain(rest).fold(0.0, |top, value| larger(top, *value))
}

/// Replaces each value by the value times `scale`, raised to the power 2^`sharpness`. Returns their sum.
fn raise(values: &mut [f64], scale: f64, sharpness: u32) -> f64 {
    let power = |value: f64| (0..sharpness).fold(value * scale, |power, _| power * power);
    let (lanes, rest) = values.as_chunks_mut::<4>();
    let mut sums = [0.0; 4];
    for lane in lanes {
        let mut powers = lane.map(|value| value * scale);
        for _ in 0..sharpness {
            powers = powers.map(|power| power * power);
        }
        *lane = powers;
        for (sum, power) in sums.iter_mut().zip(powers) {
            *sum += power;
        }
    }
    let lanes_sum: f64 = sums.iter().sum();
    rest.iter_mut().fold(lanes_sum, |sum, value| {
        *value = power(*value);
        sum + *value
    })
}

/// Divides each batch by the p-th root of the ratio of its slope to the mean slope.
fn step(problem: &Problem<'_>, batches: &mut [f64], gradients: &[f64], sharpness: u32) {
    let even = problem.whole as f64 / batches.len() as f64;
    let width = (SLOPE_SHARE * even).max(problem.quantum as f64);
    let slope = |((batch, blame), share): ((&f64, &f64), &SplitWorker)| {
        blame * (share.curve.time_of(batch + width) - share.curve.time_of(*batch)) / width
    };
    let slopes: Vec<f64> = batches.iter().zip(gradients).zip(problem.shares).map(slope).collect();
    let weighted: f64 = slopes.iter().zip(batches.iter()).map(|(slope, batch)| slope * batch).sum();
    let mean = (weighted / problem.whole.max(1) as f64).max(f64::MIN_POSITIVE);
    let root = 0.5f64.powi(sharpness as i32);
    // No factor can increase a batch of 0, so it counts as half a quantum. Rounding can take that to 0 or to
    // one quantum.
    let least = 0.5 * problem.quantum as f64;
    for (batch, slope) in batches.iter_mut().zip(slopes) {
        let factor = (slope / mean).powf(-root).clamp(1.0 / LARGEST_STEP, LARGEST_STEP);
        *batch = batch.max(least) * factor;
    }
}

/// Scales the batches so that, clamped to their bounds, they add up to the multiples of the quantum in the
/// total.
fn scale(problem: &Problem<'_>, batches: &mut [f64]) {
    let whole = problem.whole as f64;
    let bounds = || problem.floors.iter().zip(&problem.caps).map(|(floor, cap)| (*floor as f64, *cap as f64));
    let (mut low, mut high) = (0.0f64, f64::INFINITY);
    let mut scale = whole / batches.iter().sum::<f64>();
    for _ in 0..SCALING_STEPS {
        // The sum of the batches at a bound, and the sum of the others before scaling.
        let (mut fixed, mut free) = (0.0, 0.0);
        for (batch, (floor, cap)) in batches.iter().zip(bounds()) {
            let scaled = batch * scale;
            if scaled <= floor {
                fixed += floor;
            } else if scaled >= cap {
                fixed += cap;
            } else {
                free += batch;
            }
        }
        let next = (whole - fixed) / free;
        if next == scale {
            break;
        }
        if fixed + scale * free < whole {
            low = scale;
        } else {
            high = scale;
        }
        scale = match (next > low && next < high, high.is_finite()) {
            (true, _) => next,
            (false, true) => low + (high - low) / 2.0,
            (false, false) => 2.0 * low,
        };
    }
    for (batch, (floor, cap)) in batches.iter_mut().zip(bounds()) {
        *batch = (*batch * scale).clamp(floor, cap);
    }
}

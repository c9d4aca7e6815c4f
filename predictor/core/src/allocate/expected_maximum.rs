//! The split under uncertainty: it minimises the expected maximum, not the maximum of expectations.
//!
//! Over scenarios w with factors `f_wi` the expected step time is `mean_w max_i finish_i(f_wi *
//! curve_i(x_i))`. This is a sample average approximation of a stochastic program (Kleywegt, Shapiro,
//! Homem-de-Mello 2002). It is convex if the curves are. A fixed-point iteration (`blame`) comes close to its
//! minimum on real-valued batches. If batches have so few quanta that rounding matters, exchanges of single
//! quanta follow.
//!
//! A minimum over recent scenarios is fitted to them, including their noise, and performs worse on other
//! iterations. So the result lies between the plain split and the fitted one. It moves towards the fitted one
//! only by the part of the gain that exceeds its standard error, and not at all if the gain could be chance.
//! On this way the expected time decreases because it is convex.

use super::exact_split::split;
use super::exchange::exchange;
use super::quantum::{Infeasible, Problem};
use super::scenarios::Scenarios;
use super::smoothed_maximum::blame;
use super::worker::SplitWorker;

/// Maximum number of workers; more get the plain split.
pub const MAX_WORKERS: usize = 256;

/// Average number of quanta per worker from which rounding to quanta has no notable cost.
const FINE_QUANTA: u64 = 16;

/// Rounding losses that differ by less than this part of a quantum count as equal.
const LOSS_TOLERANCE: f64 = 1e-6;

/// Splits `total` samples so that the expected step time over the scenarios is small. It is never larger than
/// with [`allocate`](super::allocate).
///
/// Without scenarios, and with more than [`MAX_WORKERS`] workers, the result is the same as that from
/// `allocate`.
///
/// # Errors
/// [`Infeasible`] if the floors add up to more, or the caps to less, than the total.
pub fn allocate_expected(
    shares: &[SplitWorker],
    scenarios: &Scenarios,
    total: u64,
    quantum: u64,
) -> Result<Vec<u64>, Infeasible> {
    let problem = Problem::new(shares, total, quantum)?;
    let plain = split(&problem);
    let with_remainder = |mut batches: Vec<u64>| {
        problem.add_remainder(&mut batches);
        batches
    };
    if scenarios.is_empty() || shares.len() < 2 || shares.len() > MAX_WORKERS {
        return Ok(with_remainder(plain));
    }
    let fitted = fit(&problem, scenarios, &plain);
    let both = scenarios.finishes(shares, &plain).zip(scenarios.finishes(shares, &fitted));
    let gains: Vec<f64> = both.map(|(plain_s, fitted_s)| plain_s - fitted_s).collect();
    // The mean cannot be negative, except for rounding errors.
    let part = if gains.iter().sum::<f64>() > 0.0 { significance(&gains, 1.0) } else { 0.0 };
    let between = plain.iter().zip(&fitted).map(|(plain, fitted)| {
        let (plain, fitted) = (*plain as f64, *fitted as f64);
        plain + part * (fitted - plain)
    });
    let weighed = with_remainder(to_quanta(&problem, &between.collect::<Vec<f64>>()));
    let plain = with_remainder(plain);
    let expected_s = |batches: &[u64]| scenarios.expected_finish(shares, batches);
    Ok(if expected_s(&weighed) < expected_s(&plain) { weighed } else { plain })
}

/// Returns a split with nearly the smallest expected time over these scenarios, in whole quanta.
fn fit(problem: &Problem<'_>, scenarios: &Scenarios, plain: &[u64]) -> Vec<u64> {
    let blamed = to_quanta(problem, &blame(problem, scenarios, plain));
    if problem.whole / problem.quantum >= FINE_QUANTA.saturating_mul(plain.len() as u64) {
        return blamed;
    }
    // Curves with steps are not convex, so the result can depend on the starting point.
    let from_plain = exchange(problem, scenarios, plain.to_vec());
    let from_blamed = exchange(problem, scenarios, blamed);
    let expected_s = |batches: &[u64]| scenarios.expected_finish(problem.shares, batches);
    if expected_s(&from_blamed) < expected_s(&from_plain) { from_blamed } else { from_plain }
}

/// Returns the part of the mean of these gains, or losses, that exceeds this number of standard errors; 0 to 1.
pub fn significance(gains: &[f64], errors: f64) -> f64 {
    let count = gains.len() as f64;
    let mean = gains.iter().sum::<f64>() / count;
    if mean == 0.0 {
        return 0.0;
    }
    let squares: f64 = gains.iter().map(|gain| (gain - mean) * (gain - mean)).sum();
    let standard_error = (squares / (count * (count - 1.0))).sqrt();
    (1.0 - errors * standard_error / mean.abs()).max(0.0)
}

/// Rounds amounts to whole quanta within the bounds.
///
/// Amounts are rounded down. The missing samples go first to the workers that lost most by rounding. Ties go
/// to the worker that would finish first, then to the lower rank.
fn to_quanta(problem: &Problem<'_>, amounts: &[f64]) -> Vec<u64> {
    let quantum = problem.quantum;
    let bounds = problem.floors.iter().zip(&problem.caps);
    let down = |(amount, (floor, cap)): (&f64, (&u64, &u64))| {
        (*amount as u64 / quantum * quantum).clamp(*floor, *cap)
    };
    let mut batches: Vec<u64> = amounts.iter().zip(bounds).map(down).collect();
    // Amounts between two splits in whole quanta often have equal losses, except for rounding errors of the
    // sums.
    let lost = |i: usize| ((amounts[i] - batches[i] as f64) / quantum as f64 / LOSS_TOLERANCE).round() as i64;
    let next_s = |i: usize| problem.shares[i].finish_s(batches[i] + quantum);
    let mut order: Vec<(i64, f64, usize)> = (0..amounts.len()).map(|i| (lost(i), next_s(i), i)).collect();
    order.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
    let most_lost: Vec<usize> = order.into_iter().map(|(_, _, i)| i).collect();
    let mut sum = batches.iter().fold(0u64, |sum, batch| sum.saturating_add(*batch));
    // The total is within the sums of the bounds, so some worker can always give or receive.
    while sum < problem.whole {
        for i in &most_lost {
            if sum < problem.whole && batches[*i] < problem.caps[*i] {
                batches[*i] += quantum;
                sum += quantum;
            }
        }
    }
    while sum > problem.whole {
        for i in most_lost.iter().rev() {
            if sum > problem.whole && batches[*i] > problem.floors[*i] {
                batches[*i] -= quantum;
                sum -= quantum;
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests;

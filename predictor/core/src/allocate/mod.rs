//! The exact min-max split: integers `x_i` that minimise `max_i finish_i(x_i)` with `sum x_i = total` exactly, floors,
//! caps, and every `x_i` a multiple of the quantum (LB-BSP, arXiv 1806.02508 and SoCC 2020).
//!
//! A search over the finish time T: at T worker i can do at most `u_i(T)` samples, a non-decreasing step function, so
//! the smallest T with `sum u_i(T) >= total` is the optimum. Samples that T allows beyond the total (workers that tie)
//! are not handed out: what would finish last, then the larger batch, then the higher rank goes without.
//!
//! Where the total is no multiple of the quantum (the ragged end of an epoch), one worker takes the remainder on top
//! of its multiples: the one that finishes it first.

mod blame;
mod exchange;
mod expected;
mod few;
mod partition;
mod problem;
mod scenarios;
mod search;
mod share;
mod sizes;

pub use expected::{MAX_WORKERS, allocate_expected};
pub use few::few_sizes;
pub use partition::partition;
pub use problem::Infeasible;
pub use scenarios::{MAX_SCENARIOS, MIN_SCENARIOS, Scenarios};
pub use share::{Communication, Share};
pub use sizes::{NoSplit, allocate_sizes};

use crate::curve::Curve;
use problem::Problem;

/// Splits `total` samples.
///
/// # Errors
/// [`Infeasible`] where the floors take more, or the caps hold less, than the total.
pub fn allocate(shares: &[Share], total: u64, quantum: u64) -> Result<Vec<u64>, Infeasible> {
    let problem = Problem::new(shares, total, quantum)?;
    let mut batches = search::split(&problem);
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

#[cfg(test)]
mod tests;

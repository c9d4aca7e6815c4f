//! Splits of the global batch: the number of samples for each worker.
//!
//! - `worker`: one worker as an input of a split: its curve and its bounds
//! - `quantum`: floors, caps and the total in multiples of the quantum, and the worker that gets the
//!   remainder
//! - `exact_split`: the split with the smallest maximum finish time
//! - `scenarios`: the distribution of forecast errors in the next iteration
//! - `expected_maximum`: a split with a small expected time of the slowest worker
//! - `allowed_sizes`, `distinct_sizes`: splits into given sizes, or into a limited number of sizes

mod allowed_sizes;
mod distinct_sizes;
mod exact_split;
mod exchange;
mod expected_maximum;
mod quantum;
mod scenarios;
mod smoothed_maximum;
mod worker;

pub use allowed_sizes::{SizesError, allocate_sizes};
pub use distinct_sizes::allocate_distinct_sizes;
pub use exact_split::{allocate, even, finish_s};
pub use expected_maximum::{MAX_WORKERS, allocate_expected, significance};
pub use quantum::{Crossed, Infeasible};
pub use scenarios::{MAX_SCENARIOS, MIN_SCENARIOS, Residuals, Scenarios};
pub use worker::SplitWorker;

#[cfg(test)]
mod tests;

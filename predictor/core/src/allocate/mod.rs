//! Shares of the global batch: who takes how many samples.
//!
//! - `worker`: one worker, as a split sees it: its curve, its communication, its bounds
//! - `quantum`: floors, caps and the total in whole quanta, and the worker that takes the remainder
//! - `exact_split`: the split whose slowest worker finishes first
//! - `scenarios`: how the coming iteration may differ from its forecast
//! - `expected_maximum`: the split with a small expected time of the slowest worker
//! - `allowed_sizes`, `distinct_sizes`: splits into given sizes, or into few of them
//! - `cost_ranges`: contiguous ranges of samples that cost differently

mod allowed_sizes;
mod blame;
mod cost_ranges;
mod distinct_sizes;
mod exact_split;
mod exchange;
mod expected_maximum;
mod quantum;
mod scenarios;
mod worker;

pub use allowed_sizes::{NoSplit, allocate_sizes};
pub use cost_ranges::partition;
pub use distinct_sizes::few_sizes;
pub use exact_split::{allocate, even, finish_s};
pub use expected_maximum::{MAX_WORKERS, allocate_expected};
pub use quantum::Infeasible;
pub use scenarios::{MAX_SCENARIOS, MIN_SCENARIOS, Scenarios};
pub use worker::{Communication, Share};

#[cfg(test)]
mod tests;

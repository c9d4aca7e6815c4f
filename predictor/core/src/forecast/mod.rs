//! One-step-ahead forecasts of each worker's log speed in the next iteration.
//!
//! - Experts ([`average`], [`arx`]) forecast the log speed from a worker's past and from the drivers read at
//!   the boundary of the iteration ([`inputs`]).
//! - [`Mix`] weights the experts by their records.
//! - [`AdaptiveInterval`] computes an interval around the mix.
//! - [`JobForecaster`] runs all of these for the workers of a job.
//! - [`narx`] is a network that is fitted to a range of history; [`nonlinear`] makes it an expert.

pub mod arx;
pub mod average;
pub mod change;
mod expert;
pub mod fit;
pub mod inputs;
mod interval;
mod job;
mod missing_readings;
mod mix;
pub mod narx;
pub mod nonlinear;
pub mod recursive_least_squares;
pub mod scaling;
mod value;
mod worker;

pub use expert::{EXPERT_NAMES, ExpertKind, UnknownExpert};
pub use interval::AdaptiveInterval;
pub(crate) use job::Worker;
pub use job::{Earlier, Expected, JobForecaster, Loss, WIDE};
pub use mix::Mix;
pub use value::{COVERAGE, ExpertRecord, Forecast};

#[cfg(test)]
mod tests;

//! The speed of each worker in the coming iteration, one step ahead, on the log scale.
//!
//! Experts ([`average`], [`arx`]) each forecast the log speed from a worker's past and the drivers read at the boundary of
//! the iteration ([`inputs`]); [`Mix`] weights them by their own records; [`AdaptiveInterval`] puts a band around the mix.
//! [`JobForecaster`] runs them for all workers of a job. [`narx`] is a network that is fitted to a range of history ([`nonlinear`] makes an
//! expert of it).

pub mod arx;
pub mod average;
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
pub use job::{Earlier, JobForecaster, Loss};
pub use mix::Mix;
pub use value::{COVERAGE, ExpertRecord, Forecast};

#[cfg(test)]
mod tests;

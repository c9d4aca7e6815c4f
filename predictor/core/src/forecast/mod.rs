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
mod mix;
pub mod narx;
pub mod nonlinear;
pub mod rls;
pub mod scaling;
mod worker;

pub use expert::{EXPERT_NAMES, ExpertKind, UnknownExpert};
pub use interval::AdaptiveInterval;
pub use job::{Earlier, JobForecaster, Loss};
pub use mix::Mix;

use serde::{Deserialize, Serialize};

/// Nominal coverage of the interval of a forecast.
pub const COVERAGE: f64 = 0.9;

/// The speed expected in the coming iteration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Expected speed in samples per second of compute time; positive and finite.
    pub speed: f64,
    /// Lower end of the interval with [`COVERAGE`].
    pub lower: f64,
    /// Upper end of the interval.
    pub upper: f64,
}

/// One expert's part in a forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertRecord {
    /// Its name.
    pub name: String,
    /// The speed it expects.
    pub speed: f64,
    /// Its weight in the mix.
    pub weight: f64,
    /// Root of its mean squared error in log speed, exponentially forgotten; `None` before its first score.
    pub log_rmse: Option<f64>,
}

#[cfg(test)]
mod tests;

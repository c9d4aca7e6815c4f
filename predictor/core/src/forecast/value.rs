//! The forecast and the record of an expert.

use serde::{Deserialize, Serialize};

/// Nominal coverage of the interval of a forecast.
pub const COVERAGE: f64 = 0.9;

/// The expected speed in the next iteration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Expected speed in samples per second of compute time; positive and finite.
    pub speed: f64,
    /// Lower end of the interval with [`COVERAGE`].
    pub lower: f64,
    /// Upper end of the interval.
    pub upper: f64,
}

/// The record of one expert.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertRecord {
    /// Name of the expert.
    pub name: String,
    /// Speed that the expert predicts.
    pub speed: f64,
    /// Weight of the expert in the mix.
    pub weight: f64,
    /// Root mean squared error in log speed, exponentially weighted; `None` before the first score.
    pub log_rmse: Option<f64>,
}

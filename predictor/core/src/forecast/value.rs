//! What a forecast is.

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

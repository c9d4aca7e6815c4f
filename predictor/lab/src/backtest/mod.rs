//! Backtests: what would forecasts have been worth on what was recorded?
//!
//! Rolling origin ([`roll`]): a model walks through a job row by row, forecasts each row from what was known before it, and
//! is then shown the row. Rows after the warm-up are scored: by error ([`Accuracy`]), by interval ([`Calibration`]), and
//! by the step time that an allocation on the forecasts would have given ([`step_time`]).
//!
//! System identification ([`Identification`]): a model is fitted to one stretch of a system and predicts another, one step
//! ahead or on its own predictions.
//!
//! - [`job`]: recorded series, and the order in which their rows came
//! - [`models`]: the names of models, and what stands behind each
//! - [`rolling`]: the walk
//! - [`refit`]: batch models, fitted again and again on the way
//! - [`metrics`]: error and interval
//! - [`step_time`]: the one that matters
//! - [`system`]: system identification
//! - [`recipes`]: batch models by name

pub mod job;

pub mod models;

pub mod rolling;

pub mod refit;

pub mod metrics;

pub mod step_time;

pub mod system;

pub mod recipes;

pub use job::{Job, Row, Series};
pub use metrics::{Accuracy, Calibration};
pub use models::{ModelName, Setup};
pub use recipes::Tuning;
pub use refit::Refits;
pub use rolling::{JobModel, Plan, Point, Prediction, Track, roll};
pub use step_time::{Regret, Step};
pub use system::{Identification, Identified};

/// A clock in seconds, for the times of fits and forecasts: the core reads none.
pub type Clock<'a> = &'a (dyn Fn() -> f64 + Sync);

/// Why a backtest cannot be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BacktestError {
    /// The warm-up or what follows it is too short.
    #[error(
        "{id}: {rows} rows, of which {warmup} are warm-up: at least {warmup_min} rows of warm-up and {test_min} after it are needed"
    )]
    TooFewRows {
        /// The series.
        id: String,
        /// Its rows.
        rows: usize,
        /// How many of them are warm-up.
        warmup: usize,
        /// How many the warm-up needs.
        warmup_min: usize,
        /// How many must follow it.
        test_min: usize,
    },
    /// A range of rows passes the end.
    #[error("{id}: the {which} range {start}..{end} ends past the {rows} rows there are")]
    PastEnd {
        /// The series.
        id: String,
        /// Which range.
        which: &'static str,
        /// Its first row.
        start: usize,
        /// The row after its last.
        end: usize,
        /// Rows of the series.
        rows: usize,
    },
    /// A range is too short for the lags.
    #[error("{id}: the {which} range {start}..{end} is too short: {rule}")]
    TooShort {
        /// The series.
        id: String,
        /// Which range.
        which: &'static str,
        /// Its first row.
        start: usize,
        /// The row after its last.
        end: usize,
        /// What it needs.
        rule: String,
    },
}

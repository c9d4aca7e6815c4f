//! Backtests: what would forecasts have been worth on what was recorded?
//!
//! Rolling origin ([`roll`]): a model walks through a job row by row, forecasts each row from what was known before it, and
//! is then shown the row. Rows after the warm-up are scored: by error ([`Accuracy`]), by interval ([`Calibration`]), and
//! by the step time that an allocation on the forecasts would have given ([`step_time`]).
//!
//! System identification ([`Identification`]): a model is fitted to one stretch of a system and predicts another, one step
//! ahead or on its own predictions.
//!
//! - [`error`]: why a backtest cannot be run
//! - [`job`]: recorded series, and the order in which their rows came
//! - [`metrics`]: error and interval
//! - [`clock`]: the clock of fits and forecasts
//! - [`rolling`]: rolling origin
//! - [`recipes`]: batch models by name
//! - [`refit`]: batch models, fitted again and again on the way
//! - [`models`]: all models by name
//! - [`step_time`]: the step time that forecasts would have given
//! - [`system`]: system identification

pub mod error;

pub mod job;

pub mod metrics;

pub mod clock;

pub mod rolling;

pub mod recipes;

pub mod refit;

pub mod models;

pub mod step_time;

pub mod system;

pub use clock::Clock;
pub use error::BacktestError;
pub use job::{Job, Row, Series};
pub use metrics::{Accuracy, Calibration};
pub use models::ModelName;
pub use recipes::Tuning;
pub use refit::{Refits, Setup};
pub use rolling::{JobModel, Plan, Point, Prediction, Track, roll};
pub use step_time::{Regret, Step};
pub use system::{Identification, Identified};

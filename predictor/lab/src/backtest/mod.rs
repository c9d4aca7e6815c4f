//! Backtests: accuracy of forecasts on recorded data.
//!
//! Rolling origin ([`walk_job`]): a model walks through a job row by row. It forecasts each row from earlier
//! rows, and then sees the actual row. Rows after the warm-up are scored by:
//!
//! - error ([`Accuracy`])
//! - interval ([`Calibration`])
//! - step time of an allocation by the forecasts ([`step_time`])
//!
//! - [`error`]: errors of a backtest
//! - [`job`]: recorded series, and the order of their rows
//! - [`metrics`]: errors and intervals
//! - [`clock`]: clock of fits and forecasts
//! - [`rolling`]: rolling origin
//! - [`models`]: models by name
//! - [`step_time`]: step time of an allocation by forecasts

pub mod error;

pub mod job;

pub mod metrics;

pub mod clock;

pub mod rolling;

pub mod models;

pub mod step_time;

pub use clock::Clock;
pub use error::BacktestError;
pub use job::{Job, Row, Series, is_enough};
pub use metrics::{Accuracy, Calibration};
pub use models::ModelName;
pub use rolling::{JobModel, Point, Prediction, Track, WalkSettings, walk_job};
pub use step_time::{Regret, TimedStep};

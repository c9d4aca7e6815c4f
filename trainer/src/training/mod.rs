//! A run: its model, its data, its options and its hooks.
//!
//! - [`Training`]: what each worker trains
//! - [`Builder`]: a run of your own model, started with one call
//! - [`Options`]: how it trains; `batch`, `check`, `hedge`, `learning_rate`: parts of it
//! - [`Observer`], [`Hooks`]: what an experiment adds
//! - [`WorkerProcess`]: who a worker process is

mod batch;
mod builder;
mod check;
mod hedge;
mod learning_rate;
mod observer;
mod options;
mod process;

pub use builder::{Builder, Training};
pub use check::InvalidArgs;
pub use hedge::{HedgeChoice, HedgeOptions};
pub use learning_rate::{Beginning, LearningRateOptions, RuleChoice};
pub use observer::{At, Hooks, Observer, RunInfo};
pub use options::{LaunchOptions, Options, StepOptions};
pub use process::{LOOPBACK, WORKER, WorkerProcess};

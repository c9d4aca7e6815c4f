//! A run: its model, data, options and hooks.
//!
//! - [`Training`]: training of one worker
//! - [`Builder`]: a run of your own model, started with one call
//! - [`Options`]: options of the training; `batch`, `check`, `hedge`, `learning_rate` and `tls` are parts of it
//! - [`Observer`], [`Hooks`]: extension points for experiments
//! - [`WorkerProcess`]: identity of a worker process

mod batch;
mod builder;
mod check;
mod hedge;
mod learning_rate;
mod observer;
mod options;
mod process;
mod tls;

pub use builder::{Builder, Training};
pub use check::InvalidArgs;
pub use hedge::{HedgeChoice, HedgeOptions};
pub use learning_rate::{GroupStart, LearningRateOptions, RuleChoice};
pub use observer::{At, Hooks, Observer, RunInfo};
pub use options::{LaunchOptions, Options, StepOptions};
pub use process::{LOOPBACK, WORKER, WorkerProcess};
pub use tls::ClientTlsOptions;

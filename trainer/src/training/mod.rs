//! A run: its model, data, options and hooks.
//!
//! - [`Training`]: training of one worker
//! - [`Builder`]: a run of your own model, started with one call
//! - [`Options`]: options of the training; `batch`, `check` and `learning_rate` are parts of it
//! - `tls`: TLS and token of the connection to the predictor
//! - [`Observer`], [`Hooks`]: extension points for experiments
//! - [`WorkerProcess`]: identity of a worker process

mod batch;
mod builder;
mod check;
mod learning_rate;
mod observer;
mod options;
mod process;
mod tls;

pub use builder::{Builder, Training};
pub use check::InvalidArgs;
pub use learning_rate::{GroupStart, RuleChoice};
pub use observer::{At, Hooks, Observer, RunInfo};
pub use options::{LaunchOptions, Options, StepOptions};
pub use process::{LOOPBACK, WORKER, WorkerProcess};
pub use tls::client_tls;

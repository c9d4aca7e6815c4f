//! `launch` and `join`: train the built-in networks, record the run, and impose loads.
//!
//! - `args`: the arguments
//! - `run`: starts the loads and workers of a run, or runs one of its workers
//! - `conditions`: the loads of a worker over time, and their description
//! - `observer`: records the iterations of a worker

mod args;
mod conditions;
mod observer;
mod run;

pub use args::{JoinArgs, LaunchArgs, TrainArgs};
pub use run::{join, run};

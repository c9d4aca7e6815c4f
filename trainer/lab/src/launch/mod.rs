//! `launch` and `join`: training the built-in networks, observed and under loads on purpose.
//!
//! - `args`: the arguments
//! - `run`: starting a run with its loads, and working as one of its workers
//! - `conditions`: what a worker runs under, in words and over time
//! - `observer`: what is recorded of its iterations

mod args;
mod conditions;
mod observer;
mod run;

pub use args::{JoinArgs, LaunchArgs, TrainArgs};
pub use run::{join, run};

//! Experiments with evenstep's trainer, and its command line `evenstep-trainer`.
//!
//! - [`cli`]: the commands
//! - [`store`]: hosting the store for workers that are started by hand
//! - [`processes`]: the worker processes of an experiment
//! - [`burst`]: running burst-parallel plans, compared with what was planned
//! - [`profile`]: measuring layers and the network, for such plans
//! - [`gaps`]: background work in the gaps of such a plan
//! - [`report`]: records of runs as a table, a page and JSON

pub mod burst;
pub mod cli;
pub mod gaps;
pub mod processes;
pub mod profile;
pub mod report;
pub mod store;

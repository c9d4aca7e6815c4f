//! Experiments with evenstep's trainer, and its command line `evenstep-trainer`.
//!
//! - [`cli`]: the commands
//! - [`launch`]: `launch` and `join`: training the built-in networks, observed and under loads on purpose
//! - [`network`], [`dataset`], [`task`]: what is trained
//! - [`load`]: competing loads and imposed speeds
//! - [`record`]: records, sample logs and timelines of a run; [`report`] draws them up
//! - [`background`]: a second training in the gaps of the first
//! - [`processes`]: the worker processes of an experiment
//! - [`burst`]: running burst-parallel plans, compared with what was planned
//! - [`profile`]: measuring layers and the network, for such plans
//! - [`gaps`]: background work in the gaps of such a plan
//! - [`store`]: hosting the store for workers that are started by hand

pub mod background;
pub mod burst;
pub mod cli;
pub mod dataset;
pub mod gaps;
pub mod launch;
pub mod load;
pub mod network;
pub mod processes;
pub mod profile;
pub mod record;
pub mod report;
pub mod store;
pub mod task;

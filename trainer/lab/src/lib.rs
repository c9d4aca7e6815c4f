//! Experiments with evenstep's trainer, and its command line `evenstep-trainer`.
//!
//! - [`cli`]: the commands of the binary
//! - [`launch`]: `launch` and `join`: train the built-in networks, record the run, and impose loads
//! - [`network`], [`dataset`], [`task`]: the built-in networks and data sets
//! - [`load`]: competing loads and imposed speeds
//! - [`record`]: records, sample logs and timelines of a run; [`report`] makes tables and charts of them
//! - [`background`]: background training in the idle gaps of the main training
//! - [`processes`]: the worker processes of an experiment
//! - [`burst`]: runs burst-parallel plans and compares them with the prediction
//! - [`profile`]: measures layers and the network, as input for burst-parallel plans
//! - [`gaps`]: measures background work in the gaps of a burst-parallel plan
//! - [`store`]: hosts the store for workers that are started manually

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

//! Simulation: how long would steps have taken under each way of sharing out the global batch?
//!
//! A [`World`] says what each worker's batch would take in each iteration, as it was recorded or as a cluster is described
//! ([`ClusterSpec`]); it does not react to what is done in it. A [`PolicyName`] shares out the batch knowing what it could
//! have known. [`walk()`] lets a policy live through a world.
//!
//! - [`error`]: why a simulation cannot be run
//! - [`world`]: workers, their conditions, and how their time grows with the batch
//! - [`cluster`]: a world from a description, drawn by a seed
//! - [`settings`]: the policies by name, and the settings of a simulation
//! - [`policy`]: what a policy is
//! - [`baselines`]: the policies without a forecaster
//! - [`evenstep`]: the service's own policy
//! - [`walk`](mod@walk): iteration by iteration
//! - [`summary`]: statistics of a run
//! - [`advice`]: whether evenstep is worth it

pub mod error;

pub mod world;

pub mod cluster;

pub mod settings;

pub mod policy;

pub mod baselines;

pub mod evenstep;

pub mod walk;

pub mod summary;

pub mod advice;

pub use advice::{Advice, Verdict};
pub use baselines::slowest;
pub use cluster::ClusterSpec;
pub use error::SimulateError;
pub use evenstep::{Fitter, fit_one};
pub use settings::{PolicyName, Settings};
pub use summary::Summary;
pub use walk::{Run, walk};
pub use world::{Form, Worker, World};

#[cfg(test)]
mod tests;

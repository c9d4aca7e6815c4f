//! Simulation of step times under allocation policies.
//!
//! A [`World`] gives the time of each worker's batch in each iteration, from recorded traces or from a
//! description ([`ClusterSpec`]). It does not react to the policy. A [`PolicyName`] splits the global batch
//! with the information available before the iteration. [`walk()`] runs a policy through a world.
//!
//! - [`error`]: errors of a simulation
//! - [`world`]: workers, their conditions, and their time as a function of the batch
//! - [`cluster`]: a world drawn at random from a description
//! - [`settings`]: names of the policies, and settings of a simulation
//! - [`policy`]: interface of a policy
//! - [`baselines`]: policies without a forecaster
//! - [`evenstep`]: the policy of the service
//! - [`walk`](mod@walk): the loop over iterations
//! - [`summary`]: statistics of a run
//! - [`advice`]: the recommendation

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

pub use advice::{Advice, Gain, Verdict, Way, WayRun};
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

//! The training loop of one worker.
//!
//! - `iteration`: one iteration, whole
//! - [`Replica`]: a model with its optimizer, position and plan, under one policy
//! - [`Worker`]: what a worker has beside its replicas
//! - `setup`, `registration`: what comes before the first iteration
//! - [`run`]: all iterations of a run whose workers stay; [`crate::elastic`] is for workers that come and go

mod flags;
mod identity;
mod iteration;
mod registration;
mod replica;
mod run;
mod setup;
mod worker;

pub use flags::StopFlags;
pub use identity::{default_job_id, life_token, worker_id};
pub use registration::{connection, registration, start_log};
pub use replica::Replica;
pub use run::run;
pub use setup::{equip, replica, resume};
pub use worker::{StartPoint, Worker};

//! The training loop of one worker.
//!
//! - `iteration`: one iteration; `shares`: its forward and backward passes
//! - [`Replica`]: a model with its optimizer, position and plan, under one policy
//! - [`Worker`]: the state of a worker other than its replicas
//! - `setup`, `registration`: preparation of the first iteration
//! - [`run`]: all iterations of a run with fixed workers; [`crate::elastic`] is for workers that join and
//!   leave

mod flags;
mod identity;
mod iteration;
mod registration;
mod replica;
mod run;
mod setup;
mod shares;
mod worker;

pub use flags::StopFlags;
pub use identity::{default_job_id, life_token, worker_id};
pub use registration::{connection, registration, start_log};
pub use replica::Replica;
pub use run::{BLOCK, run};
pub use setup::{build_worker, replica, resume};
pub use worker::{StartPoint, Worker};

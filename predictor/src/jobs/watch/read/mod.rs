//! Reads of jobs: their views, from memory and from the store.
//!
//! - `job`: the views of one job
//! - `history`: its history
//! - `jobs`: the summaries of all jobs

mod history;
mod job;
mod jobs;

pub use history::{Period, Sampled, workers_before};

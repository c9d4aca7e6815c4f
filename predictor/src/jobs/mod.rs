//! The job registry and the hot state of each job.
//!
//! A job's state ([`evenstep_core::job::JobState`]) has one owner at a time. A request validates itself against the state, lets it
//! `observe` the reports and `decide` the iteration, commits both to the store and publishes the response. While a change is
//! being written the state is in doubt: if the write fails, or the request is dropped halfway, the next request reads the state
//! from the store again. So memory never holds what the store does not, and no client sees a decision that is not durable. An error
//! that is not the store's leaves the state as it was.
//!
//! Files in reading order:
//! - `error`: why a request fails
//! - `nodes`: when the newest sample of each node was taken
//! - `responses`: recent responses, for repeated requests
//! - `describe`: a job's state for pages and dashboards
//! - `live`: what happens in a job while it runs
//! - `load`: reads a job from the store
//! - `fits`: threads for fits, and their counters
//! - `job`: one job, and who may change its state
//! - `validate`: requests that cannot be planned
//! - `allocate`: validate, observe, decide, commit, publish
//! - `membership`: workers that join, leave, run out of memory or are overridden
//! - `options`: changes of the job options, deletion, roll-up of old iterations
//! - `refit`: fits networks and stores models beside the requests
//! - `views`, `history`: what can be read of a job
//! - `registry`: all jobs of this predictor

mod allocate;
mod describe;
mod error;
mod fits;
mod history;
mod job;
mod live;
mod load;
mod membership;
mod nodes;
mod options;
mod refit;
mod registry;
mod responses;
mod validate;
mod views;

pub use allocate::Allocated;
pub use error::JobError;
pub use fits::Pool;
pub use job::Job;
pub use live::{Cursor, Updates};
pub use load::HISTORY_ITERATIONS;
pub use membership::WORKERS_MAX;
pub use registry::{JOBS_MAX, Jobs};
pub use responses::AllocateResponse;
pub use validate::LOOK_AHEAD_MAX;

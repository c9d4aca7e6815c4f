//! The job registry and the state of each job in memory.
//!
//! Only one task at a time has access to a job's state ([`evenstep_core::job::JobState`]). An allocation is validated against
//! the state, `observe`s the reports and `decide`s the iteration, commits both to the store, and publishes the response.
//!
//! A request waits, a task works: a load or a change that has begun ends, even if its client stops waiting. While a change is
//! being written, the state is in doubt. If the write fails, the next request reads the state from the store again. So memory
//! never holds changes that the store does not have, and no client sees a decision that is not durable. Other errors leave
//! the state unchanged.
//!
//! Files in reading order:
//! - `error`: errors of requests
//! - `nodes`: time of the newest sample of each node
//! - `responses`: recent responses, for repeated requests
//! - `watch`: live statistics and log of a job, and all views of jobs
//! - `memory`: memory of all jobs, and its budget
//! - `pace`: whether a job is active
//! - `leases`: leases of workers while the state of their job is not in memory
//! - `load`: loads a job from the store
//! - `loads`: how many loads run at once, and their end
//! - `fits`: threads for fits, and their counters
//! - `held`: the state of a job in memory, and exclusive access to it
//! - `job`: one job
//! - `validate`: rejects requests that cannot be planned
//! - `allocate`: validate, observe, decide, commit, publish
//! - `membership`: workers that join, leave, run out of memory or are overridden
//! - `options`: changes of the job options, deletion, roll-up of old iterations
//! - `refit`: fits networks and stores models in the background
//! - `restore`: leases and statistics of jobs, after a restart
//! - `registry`: all jobs of this predictor
//! - `stragglers`: looks for the stragglers of all jobs
//! - `room`: removes states and responses from memory

mod allocate;
mod error;
mod fits;
mod held;
mod job;
mod leases;
mod load;
mod loads;
mod membership;
mod memory;
mod nodes;
mod options;
mod pace;
mod refit;
mod registry;
mod responses;
mod restore;
mod room;
mod stragglers;
mod validate;
mod watch;

pub use allocate::Allocated;
pub use error::JobError;
pub use evenstep_core::job::LOOK_AHEAD_MAX;
pub use fits::Pool;
pub use job::Job;
pub use load::HISTORY_ITERATIONS;
pub use membership::WORKERS_MAX;
pub use registry::{JOBS_MAX, Jobs};
pub use responses::ResponseBytes;
pub use watch::view::{Cursor, summary};
pub use watch::{Period, Stragglers};

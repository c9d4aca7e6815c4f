//! Why a request about a job fails.

use evenstep_core::allocate::Infeasible;
use evenstep_core::membership::Cooling;
use evenstep_protocol::{JobId, WorkerId};
use evenstep_store::StoreError;

/// Why a request about a job fails.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// No job of this name.
    #[error("job {0} is unknown: PUT /v1/jobs/{0} first")]
    UnknownJob(JobId),
    /// Another predictor answers for the job.
    #[error("job {job_id} is served by {url}")]
    Elsewhere {
        /// The job.
        job_id: JobId,
        /// Where that one is reached.
        url: String,
    },
    /// No worker of this name in the job.
    #[error("worker {worker} never joined job {job_id}")]
    UnknownWorker {
        /// The job.
        job_id: JobId,
        /// The worker.
        worker: String,
    },
    /// The asker trains in a generation that is over, or has not begun.
    #[error("generation {asked} of job {job_id} is not the current one, {current}")]
    StaleGeneration {
        /// The job.
        job_id: JobId,
        /// What the asker said.
        asked: u64,
        /// What is.
        current: u64,
    },
    /// Too few live workers.
    #[error("job {job_id} is paused: {live} live workers, {needed} needed")]
    Paused {
        /// The job.
        job_id: JobId,
        /// Live workers.
        live: u64,
        /// What the job asks for.
        needed: u64,
    },
    /// A worker that came and went too often has to wait.
    #[error("worker {worker} of job {job_id} {source}")]
    Cooling {
        /// The job.
        job_id: JobId,
        /// The worker.
        worker: WorkerId,
        /// For how long.
        source: Cooling,
    },
    /// The bounds cannot hold the global batch.
    #[error("job {job_id}: {source}")]
    Infeasible {
        /// The job.
        job_id: JobId,
        /// The numbers.
        source: Infeasible,
    },
    /// The iteration was not answered (yet).
    #[error("iteration {iteration} of job {job_id} is not answered: POST /allocate asks for it")]
    NotAnswered {
        /// The job.
        job_id: JobId,
        /// The iteration.
        iteration: u64,
    },
    /// The answer of an iteration was let go by age: what was told is not known any more, and must not be told otherwise.
    #[error("iteration {iteration} of job {job_id} is gone: only answers from {kept_from} on are kept")]
    Gone {
        /// The job.
        job_id: JobId,
        /// The iteration.
        iteration: u64,
        /// The first that is kept.
        kept_from: u64,
    },
    /// A value breaks a rule that depends on the job.
    #[error("{0}")]
    Invalid(String),
    /// The change contradicts what was answered already.
    #[error("{0}")]
    Conflict(String),
    /// The store says no: nothing was changed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

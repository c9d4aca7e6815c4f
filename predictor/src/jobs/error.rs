//! Errors of requests about a job.

use evenstep_core::allocate::Infeasible;
use evenstep_core::job::{Binding, Contradiction, Stops};
use evenstep_core::membership::Cooling;
use evenstep_protocol::{JobId, WorkerId};
use evenstep_store::StoreError;

/// An error of a request about a job.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// No job with this ID exists.
    #[error("unknown job {0}; create it with PUT /v1/jobs/{0}")]
    UnknownJob(JobId),
    /// The stored job cannot be read, or has options that this version does not know.
    #[error("job {job_id} cannot be planned: {reason}")]
    Unreadable {
        /// The job.
        job_id: JobId,
        /// The cause.
        reason: String,
    },
    /// Another predictor serves the job.
    #[error("job {job_id} is served by {url}; send the request there")]
    Elsewhere {
        /// The job.
        job_id: JobId,
        /// URL of that predictor.
        url: String,
    },
    /// The job is still being read from the store.
    #[error("job {0} is being loaded; retry")]
    Loading(JobId),
    /// No worker with this ID ever joined the job.
    #[error("unknown worker {worker}: it never joined job {job_id}")]
    UnknownWorker {
        /// The job.
        job_id: JobId,
        /// The worker.
        worker: String,
    },
    /// The request is for a generation that has ended or not begun.
    #[error(
        "generation {asked} of job {job_id} is not the current generation {current}; join the job and retry"
    )]
    StaleGeneration {
        /// The job.
        job_id: JobId,
        /// The generation of the request.
        asked: u64,
        /// The current generation.
        current: u64,
    },
    /// The job has fewer live workers than it requires.
    #[error(
        "job {job_id} is paused: {live} live workers, min_workers is {needed}; start more workers and retry"
    )]
    Paused {
        /// The job.
        job_id: JobId,
        /// Number of live workers.
        live: u64,
        /// Number of workers that the job requires.
        needed: u64,
    },
    /// A worker joined and left too often and must wait before it joins again.
    #[error("worker {worker} of job {job_id} {source}")]
    Cooling {
        /// The job.
        job_id: JobId,
        /// The worker.
        worker: WorkerId,
        /// The remaining wait.
        source: Cooling,
    },
    /// The bounds of the workers do not allow the global batch.
    #[error("job {job_id}{}: {source}{}", .crossed.as_ref().map_or_else(String::new, |worker| format!(", worker {worker}")), .binding.as_ref().map_or_else(String::new, |binding| format!("; {binding}")))]
    Infeasible {
        /// The job.
        job_id: JobId,
        /// The worker whose floor exceeds its own cap.
        crossed: Option<WorkerId>,
        /// The bound to change first.
        binding: Option<Box<Binding>>,
        /// The global batch and the sums of the bounds.
        source: Infeasible,
    },
    /// The iteration has no allocation.
    #[error("iteration {iteration} of job {job_id} has no allocation; request it with POST /allocate")]
    NotAllocated {
        /// The job.
        job_id: JobId,
        /// The iteration.
        iteration: u64,
    },
    /// The allocation of the iteration is void: one of its workers has departed or run out of memory since.
    #[error(
        "the allocation of iteration {iteration} of job {job_id} is void: it is of generation {planned}, and a worker departed \
         or ran out of memory since; request it with POST /allocate in generation {current}"
    )]
    Void {
        /// The job.
        job_id: JobId,
        /// The iteration.
        iteration: u64,
        /// The generation of the allocation.
        planned: u64,
        /// The current generation.
        current: u64,
    },
    /// Retention deleted the allocation of the iteration. It is not planned again, because the new allocation
    /// could differ from the old one.
    #[error(
        "the allocation of iteration {iteration} of job {job_id} was deleted by retention; allocations from iteration {kept_from} on are kept"
    )]
    Gone {
        /// The job.
        job_id: JobId,
        /// The iteration.
        iteration: u64,
        /// First iteration whose allocation is kept.
        kept_from: u64,
    },
    /// A value breaks a rule that depends on the job.
    #[error("{0}")]
    Invalid(String),
    /// The change conflicts with the stored state, such as existing allocations.
    #[error("{0}")]
    Conflict(String),
    /// The store failed. Nothing was changed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl JobError {
    /// Names the job whose row caused an error of the store.
    pub(super) fn of_row(job_id: &JobId, error: StoreError) -> Self {
        match error {
            StoreError::Corrupt { .. } => {
                Self::Unreadable { job_id: job_id.clone(), reason: error.to_string() }
            }
            error => Self::Store(error),
        }
    }
}

impl From<Contradiction> for JobError {
    fn from(contradiction: Contradiction) -> Self {
        Self::Invalid(contradiction.to_string())
    }
}

impl From<Stops> for JobError {
    fn from(stops: Stops) -> Self {
        Self::Conflict(stops.to_string())
    }
}

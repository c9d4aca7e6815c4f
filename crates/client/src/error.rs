//! Errors of the client: the failed operation and the cause.

use std::fmt;

use evenstep_protocol::{JobId, WorkerId};

/// A failed operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{operation} failed: {kind}")]
pub struct Error {
    /// The failed operation.
    pub operation: Operation,
    /// The cause.
    pub kind: ErrorKind,
}

/// An operation of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Registering the job.
    RegisterJob(JobId),
    /// Joining a worker.
    Join(WorkerId),
    /// Removing a worker.
    Leave(WorkerId),
    /// Reporting that a worker ran out of memory.
    ReportOom(WorkerId),
    /// Requesting the allocation of an iteration.
    Allocate(u64),
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RegisterJob(job) => write!(f, "registering job {job}"),
            Self::Join(worker) => write!(f, "joining worker {worker}"),
            Self::Leave(worker) => write!(f, "removing worker {worker}"),
            Self::ReportOom(worker) => write!(f, "reporting that worker {worker} ran out of memory"),
            Self::Allocate(iteration) => write!(f, "requesting the allocation of iteration {iteration}"),
        }
    }
}

/// The cause of a failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// No predictor can be reached, all are too slow, or they report a temporary failure.
    #[error("the predictor is unreachable: {0}")]
    Unreachable(String),
    /// The generation in the request is older than the job's.
    #[error("the generation is stale: {0}")]
    StaleGeneration(String),
    /// The predictor does not know the job or the worker.
    #[error("unknown job or worker: {0}")]
    Unknown(String),
    /// The predictor rejected the request.
    #[error("the predictor rejected the request: {0}")]
    Rejected(String),
    /// No allocation fits the bounds of the workers. The predictor has stored the reports of the request.
    #[error("the predictor cannot allocate: {0}")]
    Infeasible(String),
    /// The job still lists a worker from before a restart of the run. It leaves when its lease expires.
    #[error("{0}")]
    FormerWorker(String),
    /// The job id belongs to another run.
    #[error("{0}")]
    JobInUse(String),
    /// The response cannot be read or does not fit the request.
    #[error("invalid response: {0}")]
    InvalidResponse(String),
    /// Another set of workers has taken the place of this registration.
    #[error("another set of workers is registered now")]
    Superseded,
}

impl ErrorKind {
    /// Returns whether repeating the request can never succeed.
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::Rejected(_) | Self::Infeasible(_) | Self::JobInUse(_) | Self::Superseded)
    }

    pub(crate) fn in_operation(self, operation: Operation) -> Error {
        Error { operation, kind: self }
    }
}

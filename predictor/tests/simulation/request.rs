//! The requests of clients.

use std::fmt;
use std::sync::Arc;

use evenstep_predictor::jobs::{Allocated, Job, JobError, Jobs};
use evenstep_protocol::{
    AllocateRequest, JobId, JoinRequest, JoinResponse, OomReport, WorkerId, WorkerOverride,
};
use evenstep_store::access::AuditEntry;

/// A request of a client.
#[derive(Debug, Clone)]
pub enum Request {
    Allocate(AllocateRequest),
    Join(JoinRequest),
    Leave(WorkerId),
    OutOfMemory(WorkerId, OomReport),
    Override(WorkerId, Option<WorkerOverride>),
    Expire,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocate(request) => {
                write!(f, "allocate {} in {}, reports", request.iteration, request.generation)?;
                request
                    .reports
                    .iter()
                    .try_for_each(|report| write!(f, " {}:{}", report.iteration, report.worker))
            }
            Self::Join(request) => write!(f, "join {}", request.worker),
            Self::Leave(worker) => write!(f, "leave {worker}"),
            Self::OutOfMemory(worker, report) => write!(f, "out of memory {worker} {}", report.iteration),
            Self::Override(worker, wanted) => {
                write!(f, "override {worker} {:?}", wanted.as_ref().map(|wanted| wanted.max_local_batch))
            }
            Self::Expire => write!(f, "check leases"),
        }
    }
}

#[derive(Debug)]
pub enum Response {
    Allocated(Allocated),
    Members(JoinResponse),
    Nothing,
}

pub fn job_id() -> JobId {
    JobId::new("job").unwrap()
}

pub fn worker_id(worker: u64) -> WorkerId {
    WorkerId::new(format!("node/{worker}")).unwrap()
}

pub async fn job(jobs: &Jobs) -> Result<Arc<Job>, JobError> {
    jobs.job(&job_id()).await
}

pub async fn send(jobs: Arc<Jobs>, request: Request) -> Result<Response, JobError> {
    match request {
        Request::Allocate(request) => job(&jobs).await?.allocate(request).await.map(Response::Allocated),
        Request::Join(request) => job(&jobs).await?.join(request).await.map(Response::Members),
        Request::Leave(worker) => job(&jobs).await?.leave(worker, None).await.map(Response::Members),
        Request::OutOfMemory(worker, report) => {
            job(&jobs).await?.out_of_memory(worker, report).await.map(|_| Response::Nothing)
        }
        Request::Override(worker, wanted) => job(&jobs)
            .await?
            .set_override(worker, wanted, AuditEntry::anonymous("worker.override", "job"))
            .await
            .map(|()| Response::Nothing),
        Request::Expire => {
            jobs.expire_leases();
            Ok(Response::Nothing)
        }
    }
}

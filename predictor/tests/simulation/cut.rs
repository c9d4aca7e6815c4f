//! A client that stops waiting does not interrupt a load or a change of its job.

use std::sync::Arc;

use evenstep_predictor::jobs::{Allocated, JobError, Jobs};
use evenstep_protocol::{AllocateRequest, JobId, JobSpec, JoinRequest, WorkerId};
use evenstep_store::Fate;
use evenstep_store::access::AuditEntry;
use tokio::task::JoinHandle;

use crate::world::World;

fn job_id() -> JobId {
    JobId::new("job").unwrap()
}

/// A service with a job of one worker. Returns its generation.
async fn world() -> (World, u64) {
    let world = World::new().await;
    let jobs = world.jobs();
    let join = async move {
        let entry = AuditEntry::anonymous("job.create", "job");
        jobs.put_job(&job_id(), JobSpec::new(8), &entry).await.unwrap();
        let worker = WorkerId::new("node/0").unwrap();
        jobs.job(&job_id()).await.unwrap().join(JoinRequest::new(worker)).await.unwrap().generation
    };
    let generation = world.finish(join).await;
    (world, generation)
}

fn allocate(jobs: Arc<Jobs>, generation: u64) -> JoinHandle<Result<Allocated, JobError>> {
    let request = AllocateRequest::new(job_id(), generation, 0);
    tokio::spawn(async move { jobs.job(&job_id()).await?.allocate(request).await })
}

/// Cuts a request whose commit waits.
async fn cut(world: &World, request: JoinHandle<Result<Allocated, JobError>>) {
    world.settle().await;
    assert!(world.commits().is_waiting(), "the request waits for a commit");
    request.abort();
    assert!(request.await.is_err_and(|error| error.is_cancelled()), "the request was cut");
    world.settle().await;
}

#[tokio::test]
async fn a_cut_request_leaves_its_allocation_in_memory() {
    let (world, generation) = world().await;
    cut(&world, allocate(world.jobs(), generation)).await;
    world.commits().decide(Fate::Proceeds);
    world.settle().await;
    let again = allocate(world.jobs(), generation);
    world.settle().await;
    assert!(!world.commits().is_waiting(), "the job is read again, or the iteration is planned again");
    assert!(!again.await.unwrap().unwrap().is_new);
}

#[tokio::test]
async fn a_cut_request_leaves_the_job_in_memory() {
    let (mut world, generation) = world().await;
    world.crash().await;
    // A load begins with an empty write, which follows the writes of an earlier owner.
    cut(&world, allocate(world.jobs(), generation)).await;
    world.commits().decide(Fate::Proceeds);
    world.settle().await;
    let job = world.jobs().job(&job_id()).await.unwrap();
    let view = tokio::spawn(async move { job.view().await });
    world.settle().await;
    assert!(!world.commits().is_waiting(), "the job is read again");
    assert_eq!(view.await.unwrap().unwrap().generation, generation);
}

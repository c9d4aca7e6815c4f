//! A client that stops waiting does not interrupt the removal of a state from memory.

use evenstep_protocol::{AllocateRequest, JobId, JobSpec, JoinRequest, WorkerId, WorkerReport};
use evenstep_store::access::AuditEntry;
use tokio::runtime::Handle;

use crate::world::World;

/// Less than the models of a worker.
const BUDGET: u64 = 48 << 10;

#[tokio::test]
async fn a_cut_request_stores_the_models_of_a_removed_state() {
    // The models of one worker exceed the budget, so the next request for the other job removes the state.
    let world = World::with_memory(BUDGET).await;
    let [used, other] = ["used", "other"].map(|id| JobId::new(id).unwrap());
    let worker = WorkerId::new("node/0").unwrap();
    for id in [&other, &used] {
        let (jobs, id) = (world.jobs(), id.clone());
        world
            .finish(async move {
                jobs.put_job(&id, JobSpec::new(8), &AuditEntry::anonymous("job.create", "job")).await.unwrap()
            })
            .await;
    }
    for iteration in 0..2 {
        let (jobs, id, worker) = (world.jobs(), used.clone(), worker.clone());
        let request = async move {
            let job = jobs.job(&id).await.unwrap();
            let joined = job.join(JoinRequest::new(worker.clone())).await.unwrap();
            let mut request = AllocateRequest::new(id, joined.generation, iteration);
            request
                .reports
                .extend(iteration.checked_sub(1).map(|last| WorkerReport::new(worker, last, 8, 0.1)));
            job.allocate(request).await.unwrap();
        };
        world.finish(request).await;
    }
    let jobs = world.jobs();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let cut = tokio::spawn(async move { jobs.job(&other).await.map(drop) });
    // The request runs until it waits for the first time.
    tokio::task::yield_now().await;
    cut.abort();
    assert!(cut.await.is_err_and(|error| error.is_cancelled()), "the request was cut");
    while tasks() > before && !world.commits().is_waiting() {
        tokio::task::yield_now().await;
    }
    assert!(world.commits().is_waiting(), "the models are not stored");
}

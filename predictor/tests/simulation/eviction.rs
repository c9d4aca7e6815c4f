//! The removal of states from memory.

use evenstep_predictor::jobs::Jobs;
use evenstep_protocol::{AllocateRequest, JobId, JobSpec, JoinRequest, WorkerId, WorkerReport};
use evenstep_store::Fate;
use evenstep_store::access::AuditEntry;
use tokio::runtime::Handle;

use crate::world::World;

/// Less than the models of a worker.
const BUDGET: u64 = 48 << 10;
/// Longer than a job is active that planned all its iterations at once.
const PAUSE_MS: i64 = 2_000;

/// A service with two jobs. The models of one worker exceed its budget.
async fn world() -> (World, [JobId; 2]) {
    let world = World::with_memory(BUDGET).await;
    let ids = ["used", "other"].map(|id| JobId::new(id).unwrap());
    for id in &ids {
        let (jobs, id) = (world.jobs(), id.clone());
        world
            .finish(async move {
                jobs.put_job(&id, JobSpec::new(8), &AuditEntry::anonymous("job.create", "job")).await.unwrap()
            })
            .await;
    }
    (world, ids)
}

/// Plans an iteration of a job with one worker.
async fn step(world: &World, id: &JobId, iteration: u64) {
    let (jobs, id, worker) = (world.jobs(), id.clone(), WorkerId::new("node/0").unwrap());
    let request = async move {
        let job = jobs.job(&id).await.unwrap();
        let joined = job.join(JoinRequest::new(worker.clone())).await.unwrap();
        let mut request = AllocateRequest::new(id, joined.generation, iteration);
        request.reports.extend(iteration.checked_sub(1).map(|last| WorkerReport::new(worker, last, 8, 0.1)));
        job.allocate(request).await.unwrap();
    };
    let request = tokio::spawn(request);
    // A removed state is encoded on another thread, which the world does not see.
    while !request.is_finished() {
        if world.commits().is_waiting() {
            world.commits().decide(Fate::Proceeds);
        }
        tokio::task::yield_now().await;
    }
    request.await.unwrap();
}

/// Number of states that were removed.
fn removed(jobs: &Jobs) -> f64 {
    let families = jobs.families();
    let removed = families.iter().find(|family| family.name() == "evenstep_job_states_removed_total");
    removed.map_or(0.0, |family| family.get_metric()[0].get_counter().get_value())
}

/// Two jobs whose states exceed the budget together do not remove each other's while both plan iterations, however long their
/// steps are. The state of one that ended is removed.
#[tokio::test]
async fn an_active_job_keeps_its_state() {
    for step_ms in [0, 100, 7_000] {
        let (world, [fast, slow]) = world().await;
        for iteration in 0..24 {
            step(&world, &fast, iteration).await;
            if iteration % 3 == 0 {
                step(&world, &slow, iteration / 3).await;
            }
            world.advance(step_ms);
        }
        let before = removed(&world.jobs());
        assert!(before <= 2.0, "{before} removed before the jobs had a pace");
        for iteration in 24..24 + 40 {
            step(&world, &fast, iteration).await;
            world.advance(step_ms.max(100));
        }
        assert_eq!(removed(&world.jobs()), before + 1.0, "steps of {step_ms} ms");
    }
}

#[tokio::test]
async fn a_cut_request_stores_the_models_of_a_removed_state() {
    // The next request for the other job removes the state.
    let (world, [used, other]) = world().await;
    for iteration in 0..2 {
        step(&world, &used, iteration).await;
    }
    world.advance(PAUSE_MS);
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

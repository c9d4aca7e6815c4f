//! Another client changes the set of workers during a training run.

use evenstep_protocol::{WorkerState, WorkersView};
use evenstep_tests::training::{Training, batches};
use evenstep_tests::{Client, Predictor, binaries};

fn live(client: &Client) -> Vec<String> {
    let view: WorkersView = client.get("/v1/jobs/job/workers").json();
    let live = view.workers.iter().filter(|worker| worker.state == WorkerState::Live);
    live.map(|worker| worker.worker.to_string()).collect()
}

#[test]
fn training_continues_after_a_stale_generation() {
    let name = "membership::training_continues_after_a_stale_generation";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let Some(predictor) = binaries::find("evenstep-predictor", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let predictor = Predictor::start(&predictor, folder.path());
    let client = predictor.client();
    let mut training = Training::start(
        &trainer,
        folder.path(),
        &[
            "--workers=2",
            "--pace=1,3",
            "--pace-unit-ms=4",
            "--job=job",
            "--worker-id=w",
            "--samples=480",
            "--global-batch=50",
            "--steps=1000000",
            &format!("--server={}", predictor.url),
        ],
    );
    let asks_on = |iterations: u64| {
        let begun = client.next_iteration("job");
        training.until("it requests more allocations", || client.next_iteration("job") >= begun + iterations);
    };
    // On a busy machine, most iterations begin before their allocation arrives.
    let trains_in = |generation: u64| {
        training.until("an allocation is followed", || {
            training.iterations_so_far("evenstep").iter().any(|line| line["generation"] == generation)
        });
    };
    asks_on(10);
    trains_in(2);

    // A worker of the run is removed, as if its lease expired; the run registers it again.
    client.leave("job", "w/0");
    training.until("the worker is back", || live(&client) == ["w/1", "w/0"]);
    training.wait_for_reconnect(1);
    asks_on(10);
    trains_in(4);

    // A foreign worker joins. Its share would never be computed, so the run continues with the previous
    // allocation until that worker has left.
    let joined = client.join("job", "stranger");
    training.goes_on("evenstep", 500);
    let left = client.leave("job", "stranger");
    assert_eq!((joined.generation, left.generation), (5, 6));
    training.wait_for_reconnect(2);
    asks_on(10);
    trains_in(6);

    training.process.terminate();
    assert_eq!(training.process.wait().code(), Some(128 + 15), "{}", training.process.output());
    training.assert_no_sample_repeated_or_missing("evenstep", 480);
    let iterations = training.iterations("evenstep");
    let generations: Vec<u64> = iterations.iter().filter_map(|line| line["generation"].as_u64()).collect();
    assert!(!generations.contains(&5), "nothing can be trained with a stranger's share in it");
    // The ranks have another order in the job; each rank still receives its own share.
    let last =
        iterations.iter().rfind(|line| line["decision"].is_object() && line["global_batch"] == 50).unwrap();
    assert!(batches(last)[1] > batches(last)[0], "{last}");
}

//! The predictor is down for a while during a training run.

use std::path::Path;

use evenstep_protocol::AllocateResponse;
use evenstep_tests::training::{Training, batches, given_batches};
use evenstep_tests::{Gate, Predictor, binaries};
use serde_json::Value;

/// Samples per epoch: nine iterations of 50 and a partial one of 30.
const SAMPLES: u64 = 480;

fn endless(trainer: &Path, folder: &Path, gate: &Gate) -> Training {
    Training::start(
        trainer,
        folder,
        &[
            "--workers=3",
            "--pace=1,2,4",
            "--pace-unit-ms=4",
            "--job=job",
            "--worker-id=w",
            "--global-batch=50",
            "--steps=1000000",
            &format!("--samples={SAMPLES}"),
            &format!("--server={}", gate.url()),
        ],
    )
}

fn end(training: &mut Training) {
    training.process.terminate();
    assert_eq!(training.process.wait().code(), Some(128 + 15), "{}", training.process.output());
    training.assert_no_sample_repeated_or_missing("evenstep", SAMPLES);
}

#[test]
fn training_outlives_the_predictor_and_follows_it_again() {
    let name = "outages::training_outlives_the_predictor_and_follows_it_again";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let Some(predictor) = binaries::find("evenstep-predictor", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut predictor = Predictor::start(&predictor, folder.path());
    let gate = Gate::to(&predictor.url);
    let mut training = endless(&trainer, folder.path(), &gate);
    let client = predictor.client();
    training.until("it requests allocations", || client.next_iteration("job") >= 15);

    let mut known: Vec<String> = Vec::new();
    for crash in 1..=2 {
        let client = predictor.client();
        let answered = client.job("job").next_iteration;
        known.extend((known.len() as u64..answered).map(|iteration| client.allocated("job", iteration).body));
        predictor.process.kill();
        gate.cut();
        training.goes_on("evenstep", 600);
        predictor.restart();
        gate.open(&predictor.url);
        let client = predictor.client();
        for (iteration, body) in (0..).zip(&known) {
            let again = client.allocated("job", iteration);
            // Iterations that were not requested before the crash have no allocation now.
            if again.body == *body || again.status == 404 && body.contains("not-answered") {
                continue;
            }
            // The run has joined again, so until its next report it may start again with an earlier iteration.
            again.problem(404, "not-answered");
            let kept: Vec<Value> =
                client.get(&format!("/v1/jobs/job/allocations?from={iteration}&limit=1")).json();
            assert_eq!(kept, [serde_json::from_str::<Value>(body).unwrap()]);
        }
        training.wait_for_reconnect(crash);
        training.goes_on("evenstep", 600);
    }
    // On a busy machine some iterations end before their allocation arrives.
    let follows = |line: &Value| {
        let decision = &line["decision"];
        decision.is_object() && decision["kind"] != "cold_start" && line["global_batch"] == 50
    };
    let crashed_at = training.iterations_so_far("evenstep").len();
    training.until("an allocation is followed again", || {
        training.iterations_so_far("evenstep").iter().skip(crashed_at).any(follows)
    });
    end(&mut training);

    let iterations = training.iterations("evenstep");
    let alone = iterations.iter().filter(|line| line["decision"].is_null()).count();
    assert!(alone >= 20, "{alone} iterations without an allocation");
    let client = predictor.client();
    for line in iterations.iter().filter(|line| line["decision"].is_object()) {
        let answer: AllocateResponse = client.allocated("job", line["iteration"].as_u64().unwrap()).json();
        let told: Vec<u64> = answer.allocations.iter().map(|share| share.local_batch).collect();
        assert_eq!(given_batches(line), told, "the run followed the stored allocation: {line}");
    }
    let last =
        iterations.iter().rfind(|line| line["decision"].is_object() && line["global_batch"] == 50).unwrap();
    assert_ne!(last["decision"]["kind"], "cold_start", "the predictor kept its models");
    assert!(batches(last)[2] > batches(last)[0], "{last}");
    assert_eq!(training.end("evenstep")["reports_lost"], 0);
}

#[test]
fn a_predictor_that_starts_late_is_used_from_then_on() {
    let name = "outages::a_predictor_that_starts_late_is_used_from_then_on";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let Some(predictor) = binaries::find("evenstep-predictor", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let gate = Gate::shut();
    let mut training = endless(&trainer, folder.path(), &gate);
    training.goes_on("evenstep", 600);
    let predictor = Predictor::start(&predictor, folder.path());
    gate.open(&predictor.url);
    training.wait_for_reconnect(1);
    let is_uneven = |line: &Value| line["global_batch"] == 50 && batches(line)[2] > batches(line)[0];
    training.until("the fastest worker gets the most", || {
        training.iterations_so_far("evenstep").iter().any(is_uneven)
    });
    let job = predictor.client().job("job");
    assert_eq!((job.global_batch, job.live_workers), (50, 3));
    end(&mut training);
    let iterations = training.iterations("evenstep");
    assert!(
        iterations[..12].iter().all(|line| line["decision"].is_null() && spread(line) <= 1),
        "even until then"
    );
    let last = iterations.iter().rfind(|line| line["global_batch"] == 50).unwrap();
    assert!(is_uneven(last), "{last}");
}

/// Returns the difference between the largest and the smallest share.
fn spread(line: &serde_json::Value) -> u64 {
    let shares = batches(line);
    shares.iter().max().unwrap() - shares.iter().min().unwrap()
}

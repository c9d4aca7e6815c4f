//! Background jobs during a real run: they use the allowed time, and the run is unchanged.

use evenstep_protocol::AllocateResponse;
use evenstep_tests::training::Training;
use evenstep_tests::{Predictor, binaries};

const ITERATIONS: u64 = 30;

/// Returns the samples that each rank's background job trained on, from the run's output.
fn samples(said: &str) -> Vec<u64> {
    let told = said.lines().filter_map(|line| line.split_once("background job: ")?.1.split_once(" samples"));
    told.map(|(samples, _)| samples.parse().unwrap()).collect()
}

/// One worker is twice as fast and shares cannot follow, so it has slack. Without background work,
/// allocations have no budgets.
#[test]
fn spending_slack_does_not_change_the_run() {
    let name = "background::spending_slack_does_not_change_the_run";
    let (Some(predictor), Some(trainer)) =
        (binaries::find("evenstep-predictor", name), binaries::find("evenstep-trainer", name))
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let predictor = Predictor::start(&predictor, folder.path());
    let run = |job: &str, more: &[&str]| {
        let folder = folder.path().join(job);
        std::fs::create_dir(&folder).unwrap();
        let server = format!("--server={}", predictor.url);
        let job = format!("--job={job}");
        let steps = format!("--steps={ITERATIONS}");
        let common = [&*server, &job, &steps, "--workers=2", "--global-batch=128"];
        // Equal halves are the only possible split.
        let uneven = ["--quantum=64", "--samples=1024", "--pace=1,2", "--verify-gradient=5"];
        let mut training = Training::start(&trainer, &folder, &[&common[..], &uneven, more].concat());
        let said = training.succeed();
        (samples(&said), training.end("evenstep")["final_loss"].as_f64().unwrap())
    };
    let (spent, beside) = run("beside", &["--background=16", "--slow-down-limit=1"]);
    let (nothing, alone) = run("alone", &[]);
    assert_eq!((spent.len(), nothing.len()), (2, 0));
    assert!(spent.iter().sum::<u64>() > 0, "{spent:?}");
    assert!((beside - alone).abs() <= 1e-6 * alone, "{beside} {alone}");
    for (job, asked) in [("beside", true), ("alone", false)] {
        // A late allocation may be missing.
        let answers = (0..ITERATIONS).rev().map(|iteration| predictor.client().allocated(job, iteration));
        let answer: AllocateResponse = answers.into_iter().find(|reply| reply.status == 200).unwrap().json();
        let slack: Vec<_> = answer.allocations.iter().map(|share| share.background).collect();
        assert!(slack.iter().all(|background| background.is_some() == asked), "{answer:?}");
        assert!(!asked || slack.iter().flatten().any(|budget| budget.slack_s > 0.0), "{answer:?}");
    }
}

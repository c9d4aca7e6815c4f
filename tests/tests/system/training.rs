//! Undisturbed training: both policies compute the same gradients from the same samples.

use std::path::Path;

use evenstep_protocol::AllocateResponse;
use evenstep_tests::training::{Training, given_batches};
use evenstep_tests::{Predictor, binaries};

const SAMPLES: u64 = 1000;
const EPOCHS: u64 = 2;
/// An epoch of 96-sample iterations: ten full iterations and a partial one of 40 samples.
const ITERATIONS: u64 = EPOCHS * 11;

/// Compares the gradient of uneven shares with the one-process gradient in every iteration, in both element
/// types. Each policy trains every sample once per epoch and ends with the same loss.
#[test]
fn uneven_shares_train_what_even_shares_train() {
    let name = "training::uneven_shares_train_what_even_shares_train";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let Some(predictor) = binaries::find("evenstep-predictor", name) else { return };
    for (dtype, tolerance, loss_tolerance) in [("float32", 1e-5, 1e-4), ("float64", 1e-12, 1e-9)] {
        let folder = tempfile::tempdir().unwrap();
        let predictor = Predictor::start(&predictor, folder.path());
        let mut training = Training::start(
            &trainer,
            folder.path(),
            &[
                "--workers=4",
                "--pace=1,2,2,4",
                "--policy=even,base,evenstep",
                "--job=job",
                "--verify-gradient=1",
                "--global-batch=96",
                &format!("--server={}", predictor.url),
                &format!("--samples={SAMPLES}"),
                &format!("--epochs={EPOCHS}"),
                &format!("--dtype={dtype}"),
            ],
        );
        let said = training.succeed();
        assert!(said.contains("imposed"), "imposed speeds are reported: {said}");

        let client = predictor.client();
        let mut losses = Vec::new();
        for policy in ["even", "base", "evenstep"] {
            training.assert_each_sample_once(policy, EPOCHS, SAMPLES);
            let iterations = training.iterations(policy);
            assert_eq!(iterations.len() as u64, ITERATIONS);
            let difference =
                |line: &serde_json::Value| line["gradient_difference"].as_f64().expect("verified");
            let worst = iterations.iter().map(difference).fold(0.0, f64::max);
            println!(
                "{dtype}, {policy}: gradient within {worst:.1e} of the one-process gradient (allowed {tolerance:.0e})"
            );
            assert!(0.0 < worst && worst <= tolerance, "{worst:e}");
            losses.push(training.end(policy)["final_loss"].as_f64().unwrap());
        }
        for loss in &losses[1..] {
            let apart = (losses[0] - loss).abs() / losses[0];
            println!("{dtype}: final loss even {}, then {loss}: difference {apart:.1e}", losses[0]);
            assert!(apart <= loss_tolerance, "{losses:?}");
        }

        // The training followed the allocations that arrived in time, with a separate job for each policy. How many do, and
        // which worker is the fastest, depends on the machine's load: the next test waits for both.
        for (policy, job) in [("base", "job-base"), ("evenstep", "job")] {
            let iterations = training.iterations(policy);
            for line in iterations.iter().filter(|line| line["generation"].is_u64()) {
                let answer: AllocateResponse =
                    client.allocated(job, line["iteration"].as_u64().unwrap()).json();
                let told: Vec<u64> = answer.allocations.iter().map(|share| share.local_batch).collect();
                assert_eq!(given_batches(line), told);
                assert!(policy != "base" || answer.tail.is_none(), "{answer:?}");
                assert_eq!(line["decision"]["reason"], answer.decision.reason);
            }
        }
        for (policy, job) in [("base", "job-base"), ("evenstep", "job")] {
            assert_eq!(training.end(policy)["reports_lost"], 0);
            assert_eq!(client.job(job).live_workers, 0, "the workers left when they were done");
            let speeds: evenstep_protocol::SpeedsView =
                client.get(&format!("/v1/jobs/{job}/speeds?from=0&limit=1000")).json();
            assert_eq!(speeds.speeds.len() as u64, 4 * ITERATIONS, "every report arrived");
        }
    }
}

/// Every sample is trained once per epoch, the allocations that arrive in time are followed, and the gradients of uneven shares equal
/// the gradients of one process.
#[test]
fn requests_ahead_train_every_sample_once() {
    let name = "training::requests_ahead_train_every_sample_once";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let Some(predictor) = binaries::find("evenstep-predictor", name) else { return };
    let state = tempfile::tempdir().unwrap();
    let predictor = Predictor::start(&predictor, state.path());
    let server = format!("--server={}", predictor.url);
    let start = |folder: &Path, options: &[&str]| {
        let run = ["--workers=2", "--pace=1,3", "--verify-gradient=1", "--samples=500", "--global-batch=48"];
        Training::start(&trainer, folder, &[&run[..], &[&server], options].concat())
    };
    let three_epochs = tempfile::tempdir().unwrap();
    let mut training = start(three_epochs.path(), &["--job=three-epochs", "--epochs=3"]);
    training.succeed();
    training.assert_each_sample_once("evenstep", 3, 500);

    for (dtype, tolerance) in [("float32", 1e-5), ("float64", 1e-12)] {
        for policy in ["base", "evenstep"] {
            let folder = tempfile::tempdir().unwrap();
            let job = format!("--job={dtype}-{policy}");
            let endless = [job.as_str(), "--steps=1000000", "--policy", policy, "--dtype", dtype];
            let mut training = start(folder.path(), &endless);
            // On a busy machine, most iterations begin before their allocation arrives.
            let followed = |line: &serde_json::Value| {
                line["decision"].is_object() && given_batches(line)[1] > given_batches(line)[0]
            };
            training.until("the faster worker gets more", || {
                training.iterations_so_far(policy).iter().any(followed)
            });
            training.process.terminate();
            assert_eq!(training.process.wait().code(), Some(128 + 15), "{}", training.process.output());
            training.assert_no_sample_repeated_or_missing(policy, 500);
            let difference =
                |line: &serde_json::Value| line["gradient_difference"].as_f64().expect("verified");
            let worst = training.iterations_so_far(policy).iter().map(difference).fold(0.0, f64::max);
            assert!(0.0 < worst && worst <= tolerance, "{dtype}, {policy}: {worst:e}");
        }
    }
}

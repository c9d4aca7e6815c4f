//! Hedged steps: part of each iteration is claimed chunk by chunk, with the same training result as fixed
//! shares.

use std::time::Instant;

use evenstep_protocol::AllocateResponse;
use evenstep_tests::training::{Training, batches, given_batches};
use evenstep_tests::{Predictor, binaries};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::elastic::{SAMPLES as ELASTIC_SAMPLES, go_on, kill, same_loss_as_undisturbed, train};

const SAMPLES: u64 = 1000;
const EPOCHS: u64 = 2;
/// An epoch of 96-sample iterations: ten full iterations and a partial one of 40 samples.
const ITERATIONS: usize = EPOCHS as usize * 11;
const KILLS: usize = 6;

/// Returns a value of the workers' tail reports in an iteration, by rank.
fn tails<'a>(line: &'a Value, what: &'a str) -> impl Iterator<Item = f64> + 'a {
    let workers = line["workers"].as_array().unwrap().iter();
    workers.map(move |worker| worker["tail"][what].as_f64().unwrap_or(0.0))
}

/// Claims in both element types: every sample once per epoch, the one-process gradient,
/// and the loss of an even split.
#[test]
fn claimed_chunks_and_fixed_shares_train_alike() {
    let name = "hedged::claimed_chunks_and_fixed_shares_train_alike";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    for (dtype, tolerance, loss_tolerance) in [("float32", 1e-5, 1e-4), ("float64", 1e-12, 1e-9)] {
        let run = |more: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            let common = ["--workers=4", "--policy=even", "--global-batch=96", "--verify-gradient=1"];
            let paced = ["--pace=1,2,2,4", "--quantum=4"];
            let (samples, epochs) = (format!("--samples={SAMPLES}"), format!("--epochs={EPOCHS}"));
            let sized = [&*samples, &epochs, &format!("--dtype={dtype}")];
            let mut training =
                Training::start(&trainer, folder.path(), &[&common[..], &paced, &sized, more].concat());
            training.succeed();
            training.assert_each_sample_once("even", EPOCHS, SAMPLES);
            let iterations = training.iterations("even");
            assert_eq!(iterations.len(), ITERATIONS);
            let differences = iterations.iter().map(|line| line["gradient_difference"].as_f64().unwrap());
            let worst = differences.fold(0.0, f64::max);
            assert!(0.0 < worst && worst <= tolerance, "{worst:e}");
            (iterations, training.end("even")["final_loss"].as_f64().unwrap())
        };
        let (given, even_loss) = run(&[]);
        assert!(given.iter().all(|line| line["workers"][0].get("tail").is_none()), "nothing was claimed");
        let (iterations, loss) = run(&["--tail=0.6"]);
        let apart = (loss - even_loss).abs() / even_loss;
        println!("{dtype}: final loss {loss}, with even splits {even_loss}: difference {apart:.1e}");
        assert!(apart <= loss_tolerance, "{loss} {even_loss}");
        // 57 of 96 samples, in whole quanta.
        let whole: Vec<&Value> = iterations.iter().filter(|line| line["global_batch"] == 96).collect();
        assert!(whole.iter().all(|line| tails(line, "samples").sum::<f64>() == 56.0));
        for line in &iterations {
            let (chunks, samples): (f64, f64) = (tails(line, "chunks").sum(), tails(line, "samples").sum());
            assert!(chunks > 0.0 && 4.0 * chunks <= samples, "chunks of at least four: {line}");
        }
        let sums = whole.iter().fold([0, 0], |[slow, fast], line| {
            let batches = batches(line);
            [slow + batches[0], fast + batches[3]]
        });
        assert!(
            sums[1] > sums[0],
            "the fastest worker, at four times the pace, did not claim more: {sums:?}"
        );
    }
}

/// Any of three workers, rank 0 included, is killed while all claim. The others repeat the iteration; no
/// sample is lost or trained twice.
#[test]
fn a_worker_killed_with_a_claimed_chunk_loses_no_sample() {
    let name = "hedged::a_worker_killed_with_a_claimed_chunk_loses_no_sample";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let restarts = format!("--max-restarts={KILLS}");
    let run = ["--workers=3", "--policy=even", "--pace=1,2,4", "--pace-unit-ms=2", "--steps=1000000"];
    let tail = ["--tail=0.8", &restarts];
    let mut training = train(&trainer, folder.path(), &[&run[..], &tail].concat());
    let mut random = ChaCha8Rng::seed_from_u64(5);
    training.until("it trains", || training.record_bytes() > 4000);
    for times in 1..=KILLS {
        // At any point of an iteration, a few iterations later.
        let more = training.record_bytes() + random.random_range(0..10_000);
        training.until("training continues", || training.record_bytes() >= more);
        let pause = random.random_range(0..20);
        let begun = Instant::now();
        training.until("a moment is over", || begun.elapsed().as_millis() >= pause);
        kill(&training, random.random_range(0..3));
        go_on(&training, 3, times);
    }
    let more = training.record_bytes() + 20_000;
    training.until("training continues", || training.record_bytes() >= more);
    training.process.terminate();
    training.process.wait();
    training.assert_no_sample_repeated_or_missing("even", ELASTIC_SAMPLES);
    let claimed: f64 = training.iterations("even").iter().flat_map(|line| tails(line, "chunks")).sum();
    println!("{claimed} chunks; {}", same_loss_as_undisturbed(&trainer, &training, "even"));
    assert!(claimed > 100.0, "{claimed} chunks were claimed");
}

/// The predictor leaves part of iterations to a tail if speeds change, and the trainer claims it: the run
/// follows the allocations, every sample is trained once, and all reports arrive.
#[test]
fn the_shared_tail_of_the_predictor_is_claimed() {
    let name = "hedged::the_shared_tail_of_the_predictor_is_claimed";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let Some(predictor) = binaries::find("evenstep-predictor", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let predictor = Predictor::start(&predictor, folder.path());
    let common = ["--workers=4", "--job=job", "--global-batch=128", "--verify-gradient=5", "--dtype=float64"];
    let swayed = ["--vary-pace", "--pace-unit-ms=2", "--quantum=4"];
    let sized = [&*format!("--server={}", predictor.url), "--samples=2500", "--epochs=3"];
    let mut training = Training::start(&trainer, folder.path(), &[&common[..], &swayed, &sized].concat());
    training.succeed();
    training.assert_each_sample_once("evenstep", 3, 2500);
    assert_eq!(training.end("evenstep")["reports_lost"], 0);
    let client = predictor.client();
    let mut claimed = 0;
    for line in training.iterations("evenstep") {
        if line["generation"].is_null() {
            // The allocation was too late, and the previous one stayed in force.
            continue;
        }
        let answer: AllocateResponse = client.allocated("job", line["iteration"].as_u64().unwrap()).json();
        let told: Vec<u64> = answer.allocations.iter().map(|share| share.local_batch).collect();
        assert_eq!(given_batches(&line), told);
        let chunks = answer.tail.map_or(0, |tail| tail.chunks.len());
        assert_eq!(tails(&line, "chunks").sum::<f64>() as usize, chunks);
        claimed += chunks;
    }
    println!("{claimed} chunks were claimed in {} iterations", training.iterations("evenstep").len());
    assert!(claimed > 0, "no allocation had a tail");
}

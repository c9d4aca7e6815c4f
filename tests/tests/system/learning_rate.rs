//! Elastic training whose global batch follows the number of workers. The learning rate follows by the job's
//! rule.

use std::path::Path;
use std::process::Command;

use evenstep_tests::process::{Process, send};
use evenstep_tests::training::Training;
use evenstep_tests::{Predictor, binaries};
use rustix::process::Signal;
use serde_json::Value;

const SAMPLES: u64 = 2000;
const EACH: u64 = 16;

/// Common options of all runs. Each iteration compares its gradient with the one-process gradient, which
/// detects ranks with different learning rates.
fn common() -> [String; 6] {
    [
        format!("--samples={SAMPLES}"),
        format!("--per-worker-batch={EACH}"),
        "--lr=0.01".into(),
        "--dtype=float64".into(),
        "--worker-id=w".into(),
        "--verify-gradient=1".into(),
    ]
}

fn join(trainer: &Path, folder: &Path, store: &str, rank: usize, more: &[&str]) -> Training {
    let common = common();
    let common: Vec<&str> = common.iter().map(String::as_str).collect();
    let (rank, store) = (format!("--rank={rank}"), format!("--store={store}"));
    let elastic = ["--workers=2", "--elastic", "--steps=1000000", &rank, &store];
    Training::join(trainer, folder, &[&common, &elastic[..], more].concat())
}

fn workers(iteration: &Value) -> u64 {
    iteration["workers"].as_array().unwrap().len() as u64
}

fn multiplier(iteration: &Value) -> f64 {
    iteration["lr_multiplier"].as_f64().unwrap()
}

/// Waits until `count` workers have trained this number of iterations; if `answered`, one of them with its own
/// allocation.
fn train_on(training: &Training, policy: &str, count: u64, iterations: usize, answered: bool) {
    let words = format!("{count} workers continue in round");
    training.until(&words, || training.process.output().contains(&words));
    training.until("training continues", || {
        let lines = training.iterations_so_far(policy);
        let of_group: Vec<&Value> = lines.iter().rev().take_while(|line| workers(line) == count).collect();
        of_group.len() >= iterations && (!answered || of_group.iter().any(|line| line["generation"].is_u64()))
    });
}

/// Asserts that every iteration has the multiplier of Dynamic SGD: `1 + t (k-1)/T` with `T = 8 k`. The ramp
/// restarts from the current multiplier if the batch grows again; if the batch shrinks, the multiplier is `k`
/// at once.
fn by_dynamic_sgd(iterations: &[Value], base: f64) {
    let (mut from, mut to, mut start, mut length) = (1.0, 1.0, 0, 0.0_f64);
    // `group` is the first iteration with which the ramp of a group may begin.
    let (mut before, mut group) = (0, 0);
    for line in iterations {
        let iteration = line["iteration"].as_u64().unwrap();
        let course = |from: f64, to: f64, start: u64, length: f64| {
            let gone = (iteration - start) as f64;
            if gone >= length { to } else { from + (to - from) * (gone / length) }
        };
        if workers(line) != before {
            before = workers(line);
            (from, start) = (course(from, to, start, length), iteration);
            group = iteration.saturating_sub(1);
            to = (before * EACH) as f64 / base;
            length = if to > from { (8.0 * to / from).ceil() } else { 0.0 };
        }
        let said = multiplier(line);
        // The predictor's ramp may begin one iteration earlier: with one that it planned for this group, and that the
        // group before trained.
        let earlier = start.saturating_sub(1);
        if earlier >= group && (said - course(from, to, earlier, length)).abs() < 1e-6 {
            start = earlier;
        }
        let expected = course(from, to, start, length);
        assert!((said - expected).abs() < 1e-6, "iteration {iteration}: {said}, but {expected} by the rule");
    }
}

/// Two workers grow to four and shrink to two again, with and without the predictor.
#[test]
fn the_learning_rate_follows_a_run_that_grows_and_shrinks() {
    let name = "learning_rate::the_learning_rate_follows_a_run_that_grows_and_shrinks";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let Some(predictor) = binaries::find("evenstep-predictor", name) else { return };
    for policy in ["evenstep", "even"] {
        let folder = tempfile::tempdir().unwrap();
        let predictor = Predictor::start(&predictor, folder.path());
        let server = format!("--server={}", predictor.url);
        let store = Process::start(Command::new(&trainer).args(["store", "--bind=127.0.0.1:0"]));
        let address =
            store.line("the address of the store", |line| line.strip_prefix("store ").map(str::to_owned));
        let policy_word = format!("--policy={policy}");
        let more = [policy_word.as_str(), &server];
        let start = |rank: usize| join(&trainer, folder.path(), &address, rank, &more);
        let (mut first, mut second) = (start(0), start(1));
        first.until("it trains", || first.record_bytes() > 4000);
        let (mut third, mut fourth) = (start(2), start(3));
        let is_answered = policy == "evenstep";
        train_on(&first, policy, 4, 60, is_answered);
        send(third.process.id(), Signal::TERM);
        send(fourth.process.id(), Signal::TERM);
        third.succeed();
        fourth.succeed();
        train_on(&first, policy, 2, 30, is_answered);
        send(second.process.id(), Signal::INT);
        second.succeed();
        first.succeed();

        first.assert_no_sample_repeated_or_missing(policy, SAMPLES);
        let iterations = first.iterations(policy);
        let whole = |line: &&Value| line["global_batch"] == workers(line) * EACH;
        let of_four: Vec<&Value> =
            iterations.iter().filter(whole).filter(|line| workers(line) == 4).collect();
        assert!(of_four.len() >= 50, "{} iterations of four workers", of_four.len());
        by_dynamic_sgd(&iterations, (2 * EACH) as f64);
        let multipliers: Vec<f64> = iterations.iter().map(multiplier).collect();
        assert_eq!((multipliers[0], multipliers[multipliers.len() - 1]), (1.0, 1.0));
        assert!(multipliers.contains(&2.0));
        let answered = of_four.iter().filter(|line| line["generation"].is_u64()).count();
        println!("{policy}: {} iterations, {answered} with an allocation for four workers", iterations.len());
        let report = Command::new(&trainer).arg("report").arg(folder.path().join("record.jsonl")).output();
        let report = report.unwrap();
        assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
        assert!(!is_answered || answered > 0, "{}", first.process.output());
    }
}

/// The gain is between 1 and the scale, and is the same on all ranks.
#[test]
fn adascale_gains_what_the_noise_of_gradients_allows() {
    let name = "learning_rate::adascale_gains_what_the_noise_of_gradients_allows";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let Some(predictor) = binaries::find("evenstep-predictor", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let predictor = Predictor::start(&predictor, folder.path());
    let common = common();
    let common: Vec<&str> = common.iter().map(String::as_str).collect();
    let (base, server) = (format!("--global-batch={EACH}"), format!("--server={}", predictor.url));
    let adascale = [
        "--workers=3",
        // Steps of about 16 ms, so that allocations arrive in time.
        "--pace=1,1,1",
        "--rule=adascale",
        "--epochs=4",
        &base,
        &server,
    ];
    let mut training = Training::start(&trainer, folder.path(), &[&common, &adascale[..]].concat());
    training.succeed();
    training.assert_each_sample_once("evenstep", 4, SAMPLES);
    let iterations = training.iterations("evenstep");
    let gains: Vec<f64> = iterations.iter().map(multiplier).collect();
    assert!(gains.iter().all(|gain| (1.0..=3.0).contains(gain)), "{gains:?}");
    let last = gains[gains.len() - 1];
    assert!(last > 1.01 && last < 2.999, "neither all signal nor all noise: {last}");
    let scheduled = |line: &Value| Some((line["schedule_iteration"].as_f64()?, line["iteration"].as_f64()?));
    let (schedule, steps) = iterations.iter().filter_map(scheduled).next_back().unwrap();
    println!("gain {last:.2} at scale 3; {steps} iterations are {schedule} of the schedule");
    assert!(schedule > steps && schedule < 3.0 * steps, "{schedule} of {steps}");
}

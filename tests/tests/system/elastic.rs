//! Elastic training: workers are killed, stalled, stopped and restarted, and the run continues.

use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use evenstep_tests::process::{Process, send};
use evenstep_tests::training::Training;
use evenstep_tests::{Predictor, binaries};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::Signal;

pub const SAMPLES: u64 = 2000;
/// Overrides the number of kills, [`KILLS`].
const KILLS_VARIABLE: &str = "EVENSTEP_TESTS_KILLS";
const KILLS: usize = 10;

pub fn train(trainer: &Path, folder: &Path, more: &[&str]) -> Training {
    let samples = format!("--samples={SAMPLES}");
    // In 64 bits the order of additions has no visible effect, so one step too many or too few would show.
    let common =
        ["--elastic", "--global-batch=50", "--lr=0.01", "--dtype=float64", "--worker-id=w", &samples];
    Training::start(trainer, folder, &[&common, more].concat())
}

pub fn kill(training: &Training, slot: usize) {
    send(training.worker(slot), Signal::KILL);
}

/// Waits until `workers` workers have continued for the `times`-th time.
pub fn go_on(training: &Training, workers: usize, times: usize) {
    let words = format!("{workers} workers continue in round");
    training.until(&words, || training.process.output().matches(&words).count() >= times);
}

/// Asserts that an undisturbed run of the same number of iterations ends with the same loss. Returns a
/// summary of both.
pub fn same_loss_as_undisturbed(trainer: &Path, training: &Training, policy: &str) -> String {
    let end = training.end(policy);
    let folder = tempfile::tempdir().unwrap();
    let steps = format!("--steps={}", end["iterations"]);
    let mut undisturbed = train(trainer, folder.path(), &["--workers=2", "--policy=even", &steps]);
    undisturbed.succeed();
    let losses = [&end, &undisturbed.end("even")].map(|end| end["final_loss"].as_f64().unwrap());
    let apart = (losses[0] - losses[1]).abs() / losses[1];
    assert!(apart <= 1e-6, "{losses:?}");
    format!(
        "final loss after {} iterations: {}, undisturbed {}: {apart:.1e} apart",
        end["iterations"], losses[0], losses[1]
    )
}

/// Any of four workers, rank 0 included, is killed and returns, many times in one run.
#[test]
fn a_worker_leaves_and_rejoins_a_run_again_and_again() {
    let name = "elastic::a_worker_leaves_and_rejoins_a_run_again_and_again";
    let kills = env::var(KILLS_VARIABLE).map_or(KILLS, |kills| {
        kills.parse().unwrap_or_else(|_| panic!("{KILLS_VARIABLE}={kills}: must be a number"))
    });
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let Some(predictor) = binaries::find("evenstep-predictor", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let predictor = Predictor::start(&predictor, folder.path());
    let server = format!("--server={}", predictor.url);
    let mut training = train(
        &trainer,
        folder.path(),
        &[
            "--workers=4",
            "--pace=1,2,2,4",
            "--pace-unit-ms=2",
            "--job=job",
            "--steps=1000000",
            &format!("--max-restarts={kills}"),
            &server,
        ],
    );
    let mut random = ChaCha8Rng::seed_from_u64(20);
    let mut noticed: Vec<Duration> = Vec::new();
    training.until("it trains", || training.record_bytes() > 4000);
    for times in 1..=kills {
        // At any point of an iteration, a few iterations later.
        let more = training.record_bytes() + random.random_range(0..20_000);
        training.until("training continues", || training.record_bytes() >= more);
        let killed = Instant::now();
        kill(&training, random.random_range(0..4));
        training.until("the others continue", || {
            training.process.output().matches("workers continue in round").count() >= 2 * times - 1
        });
        noticed.push(killed.elapsed());
        go_on(&training, 4, times);
    }
    let more = training.record_bytes() + 20_000;
    training.until("training continues", || training.record_bytes() >= more);
    training.process.terminate();
    training.process.wait();

    let regroups = training.regroups();
    let mut took: Vec<f64> = regroups.iter().map(|line| line["regroup_s"].as_f64().unwrap()).collect();
    took.sort_by(f64::total_cmp);
    noticed.sort();
    println!(
        "{kills} kills, {} regroupings: from the failure to the next finished iteration {:.3} s (median), {:.3} s (maximum); \
         from the kill to its message {:.3?} (median), {:.3?} (maximum)",
        took.len(),
        took[took.len() / 2],
        took[took.len() - 1],
        noticed[noticed.len() / 2],
        noticed[noticed.len() - 1],
    );
    assert_eq!(regroups.iter().filter(|line| line["gone"] != serde_json::json!([])).count(), kills);
    training.assert_no_sample_repeated_or_missing("evenstep", SAMPLES);
    let new_rank0s = training.process.output().matches("is now rank 0").count();
    assert!(new_rank0s > 0, "rank 0 was never killed");
    let iterations = training.iterations("evenstep");
    let generations: BTreeSet<u64> =
        iterations.iter().filter_map(|line| line["generation"].as_u64()).collect();
    println!(
        "{new_rank0s} new rank 0s; {} iterations, allocated in {} generations",
        iterations.len(),
        generations.len()
    );
    assert!(
        generations.len() >= kills / 2,
        "the predictor received too few generations: {}",
        training.process.output()
    );
    println!("{}", same_loss_as_undisturbed(&trainer, &training, "evenstep"));
}

/// Two workers die at once; then another one while the round is open because of a stalled worker; then the
/// stalled worker continues.
#[test]
fn workers_die_together_and_during_regrouping() {
    let name = "elastic::workers_die_together_and_during_regrouping";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut training = train(
        &trainer,
        folder.path(),
        // A worker that waits only for the stalled one notices it by the timeout.
        &["--workers=4", "--policy=even", "--pace=1,1,1,1", "--steps=1000000", "--timeout-s=50"],
    );
    training.until("it trains", || training.record_bytes() > 4000);
    let victims = [training.worker(0), training.worker(3)];
    for victim in victims {
        send(victim, Signal::KILL);
    }
    go_on(&training, 4, 1);

    let stalled = training.worker(1);
    send(stalled, Signal::STOP);
    kill(&training, 2);
    training.until("a restart", || training.process.output().contains("(3 of 10 restarts)"));
    // The remaining worker waits for the stalled one now, or will.
    kill(&training, 0);
    training.until("a restart", || training.process.output().contains("(4 of 10 restarts)"));
    // After three seconds without a heartbeat the others continue without the stalled worker.
    go_on(&training, 3, 1);
    send(stalled, Signal::CONT);
    go_on(&training, 4, 2);
    let more = training.record_bytes() + 10_000;
    training.until("training continues", || training.record_bytes() >= more);
    assert_eq!(training.worker(1), stalled, "it was not restarted");

    training.process.terminate();
    training.process.wait();
    training.assert_no_sample_repeated_or_missing("even", SAMPLES);
    println!("{}", same_loss_as_undisturbed(&trainer, &training, "even"));
}

/// A worker leaves after a signal; with too few workers the run pauses; without a worker that has the
/// parameters it ends.
#[test]
fn too_few_workers_pause_the_run_and_none_end_it() {
    let name = "elastic::too_few_workers_pause_the_run_and_none_end_it";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = format!("--checkpoint-dir={}", folder.path().join("checkpoints").display());
    let run = ["--policy=even", "--checkpoint-every=10", "--min-workers=2", &checkpoints];
    let mut training = train(
        &trainer,
        folder.path(),
        &[&run[..], &["--workers=3", "--pace=1,1,1", "--steps=1000000"]].concat(),
    );
    training.until("it trains", || training.record_bytes() > 4000);
    send(training.worker(0), Signal::TERM);
    go_on(&training, 2, 1);
    let said = training.process.output();
    assert!(
        said.contains("w/0: left the run after a signal") && said.contains("w/1 is now rank 0"),
        "{said}"
    );

    kill(&training, 2);
    go_on(&training, 2, 2);
    let said = training.process.output();
    assert!(said.contains("paused: live workers 1, --min-workers 2"), "{said}");

    let more = training.record_bytes() + 10_000;
    training.until("training continues", || training.record_bytes() >= more);
    training.assert_no_sample_repeated_or_missing("even", SAMPLES);
    let victims = [training.worker(1), training.worker(2)];
    for victim in victims {
        send(victim, Signal::KILL);
    }
    assert_eq!(training.process.wait().code(), Some(1));
    let said = training.process.output();
    assert!(said.contains("launch: error: no worker with the parameters is left"), "{said}");

    let other = tempfile::tempdir().unwrap();
    let mut resumed =
        train(&trainer, other.path(), &[&run[..], &["--workers=2", "--resume", "--steps=400"]].concat());
    resumed.succeed();
    assert_eq!(resumed.end("even")["iterations"], 400);
    println!("{}", same_loss_as_undisturbed(&trainer, &resumed, "even"));
}

/// Without a launcher: a third worker makes the job grow, a death is noticed by missing heartbeats, and
/// worker ids are unique.
#[test]
fn manually_started_workers_join_and_leave() {
    let name = "elastic::manually_started_workers_join_and_leave";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let store = Process::start(Command::new(&trainer).args(["store", "--bind=127.0.0.1:0"]));
    let address =
        store.line("the address of the store", |line| line.strip_prefix("store ").map(str::to_owned));
    let join = |rank: usize| {
        let samples = format!("--samples={SAMPLES}");
        let (rank, store) = (format!("--rank={rank}"), format!("--store={address}"));
        let whole = ["--workers=2", "--elastic", "--policy=even", "--steps=1000000", "--worker-id=w"];
        let more = ["--lr=0.01", "--dtype=float64", "--global-batch=50", &samples, &rank, &store];
        Training::join(&trainer, folder.path(), &[&whole[..], &more].concat())
    };
    let (mut first, mut second) = (join(0), join(1));
    first.until("it trains", || first.record_bytes() > 4000);
    let mut third = join(2);
    go_on(&first, 3, 1);
    let mut namesake = join(1);
    assert_eq!(namesake.process.wait().code(), Some(1));
    let said = namesake.process.output();
    assert!(said.contains("another live worker has the id w/1"), "{said}");
    go_on(&first, 3, 2);

    first.process.kill();
    go_on(&second, 2, 1);
    let more = second.record_bytes() + 10_000;
    second.until("training continues", || second.record_bytes() >= more);
    send(third.process.id(), Signal::INT);
    second.succeed();
    third.succeed();
    second.assert_no_sample_repeated_or_missing("even", SAMPLES);
    println!("{}", same_loss_as_undisturbed(&trainer, &second, "even"));
}

/// Without a restart left, a run with too few workers ends with an error, and a run with enough workers
/// finishes.
#[test]
fn restarts_are_bounded() {
    let name = "elastic::restarts_are_bounded";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    for (least, steps, code) in
        [("--min-workers=3", "--steps=1000000", 1), ("--min-workers=2", "--steps=300", 0)]
    {
        let folder = tempfile::tempdir().unwrap();
        let bounds = ["--workers=3", "--pace=1,1,1", "--policy=even", "--max-restarts=0", least, steps];
        let mut training = train(&trainer, folder.path(), &bounds);
        training.until("it trains", || training.record_bytes() > 4000);
        kill(&training, 1);
        assert_eq!(training.process.wait().code(), Some(code), "{}", training.process.output());
        let said = training.process.output();
        assert!(said.contains("no restart is left"), "{said}");
        if code == 1 {
            assert!(said.contains("workers left: 2, and no restart; --min-workers is 3"), "{said}");
        } else {
            assert_eq!(training.end("even")["iterations"], 300);
            let report =
                Command::new(&trainer).arg("report").arg(folder.path().join("record.jsonl")).output();
            let report = report.unwrap();
            assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
            training.assert_no_sample_repeated_or_missing("even", SAMPLES);
        }
    }
}

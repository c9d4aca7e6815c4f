//! A worker dies or stalls: the others end with a clear error, and the run resumes from its checkpoint.

use std::path::Path;
use std::time::{Duration, Instant};

use evenstep_protocol::AllocateResponse;
use evenstep_tests::process::send;
use evenstep_tests::training::{Training, batches};
use evenstep_tests::{Predictor, binaries};
use rustix::process::Signal;

const SAMPLES: u64 = 480;
const STEPS: u64 = 60;

fn train(trainer: &Path, folder: &Path, more: &[&str]) -> Training {
    let samples = format!("--samples={SAMPLES}");
    let common = ["--workers=3", "--pace=1,2,4", "--global-batch=50", "--lr=0.01", &samples];
    Training::start(trainer, folder, &[&common, more].concat())
}

#[test]
fn a_killed_worker_ends_the_run_which_resumes_from_its_checkpoint_to_the_same_loss() {
    let name = "losses::a_killed_worker_ends_the_run_which_resumes_from_its_checkpoint_to_the_same_loss";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let Some(predictor) = binaries::find("evenstep-predictor", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let predictor = Predictor::start(&predictor, folder.path());
    let client = predictor.client();
    let checkpoints = format!("--checkpoint-dir={}", folder.path().join("checkpoints").display());
    let server = format!("--server={}", predictor.url);
    let run = ["--job=job", "--worker-id=w", "--checkpoint-every=10", &checkpoints, &server];

    let mut killed = train(&trainer, folder.path(), &[&run[..], &["--steps=1000000"]].concat());
    killed.until("it requests allocations", || client.next_iteration("job") >= 25);
    let victim = killed.workers()[1];
    send(victim, Signal::KILL);
    assert_eq!(killed.process.wait().code(), Some(1));
    let said = killed.process.output();
    assert!(said.contains(&format!("rank 1 (pid {victim}) was killed by signal 9")), "{said}");
    for rank in [0, 2] {
        assert!(
            said.contains(&format!("rank {rank}: error: iteration ")),
            "rank {rank} reports its error: {said}"
        );
    }
    let answered = client.job("job").next_iteration;
    // When requesting ahead, an iteration is skipped if the previous allocation was late.
    let answers: Vec<(u64, String)> = (0..answered)
        .map(|iteration| (iteration, client.allocated("job", iteration)))
        .filter(|(_, reply)| reply.status == 200)
        .map(|(iteration, reply)| (iteration, reply.body))
        .collect();
    assert!(answers.len() > 5, "{answered} iterations, {} answers", answers.len());

    let mut resumed =
        train(&trainer, folder.path(), &[&run[..], &["--resume", &format!("--steps={STEPS}")]].concat());
    resumed.succeed();
    let followed = resumed.iterations("evenstep");
    assert!(followed.iter().any(|line| batches(line)[2] > batches(line)[0]), "all shares were even");
    let begin = followed[0]["iteration"].as_u64().unwrap();
    assert!((10..answered).contains(&begin), "{begin} of {answered}");
    // The first iterations may follow the plan of the checkpoint. A late allocation is skipped in the resumed run, too.
    let attempt = |iteration: u64| {
        let answer = client.allocated("job", iteration);
        (answer.status == 200).then(|| answer.json::<AllocateResponse>().attempt)
    };
    let first = (begin..STEPS).find(|iteration| attempt(*iteration) == Some(2)).expect("an allocation");
    for (iteration, answer) in &answers {
        match *iteration < first {
            true => assert_eq!(client.allocated("job", *iteration).body, *answer, "iteration {iteration}"),
            false => assert!(matches!(attempt(*iteration), None | Some(2)), "iteration {iteration}"),
        }
    }
    assert_eq!(client.job("job").attempt, 2);

    let other = tempfile::tempdir().unwrap();
    let mut undisturbed = train(&trainer, other.path(), &["--policy=even", &format!("--steps={STEPS}")]);
    undisturbed.succeed();
    let loss = |training: &Training, policy: &str| training.end(policy)["final_loss"].as_f64().unwrap();
    let losses = [loss(&resumed, "evenstep"), loss(&undisturbed, "even")];
    println!(
        "final loss: killed and resumed under evenstep {}, undisturbed under even {}",
        losses[0], losses[1]
    );
    assert!((losses[0] - losses[1]).abs() <= 1e-4 * losses[1], "{losses:?}");
}

#[test]
fn a_stalled_worker_is_an_error_on_the_others_within_the_timeout() {
    let name = "losses::a_stalled_worker_is_an_error_on_the_others_within_the_timeout";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let timeout = Duration::from_secs(8);
    let timeout_flag = format!("--timeout-s={}", timeout.as_secs());
    let mut training = train(&trainer, folder.path(), &["--policy=even", "--steps=1000000", &timeout_flag]);
    training.goes_on("even", 500);
    let begun = Instant::now();
    send(training.workers()[2], Signal::STOP);
    assert_eq!(training.process.wait().code(), Some(1));
    let said = training.process.output();
    assert!(
        said.contains("rank 0: error: iteration ") || said.contains("rank 1: error: iteration "),
        "{said}"
    );
    // By its own timeout, not by the default of one minute.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

//! End-to-end tests of `launch`: real processes that connect, train, fail, stop and resume.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use evenstep_trainer::Policy;
use evenstep_trainer::progress::IterationLine;
use evenstep_trainer_lab::record::{self, Line};

fn trainer(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenstep-trainer"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn launch(arguments: &[&str]) -> Output {
    let small = ["launch", "--samples=1000", "--global-batch=64", "--hidden=16", "--timeout-s=20"];
    trainer(&[&small, arguments].concat()).output().unwrap()
}

fn succeed(output: &Output) -> String {
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words}");
    words
}

fn iterations(path: &Path) -> Vec<IterationLine> {
    let lines = record::read(path).unwrap().map(Result::unwrap);
    lines.filter_map(|line| if let Line::Iteration(line) = line { Some(*line) } else { None }).collect()
}

/// Returns a server argument with an address on which no server listens.
fn unused_server() -> String {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!("--server=http://127.0.0.1:{port}")
}

#[test]
fn every_sample_comes_exactly_once_an_epoch_the_ragged_end_included() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("samples");
    let output = launch(&[
        "--workers=3",
        "--policy=even",
        "--epochs=2",
        "--quantum=4",
        &format!("--sample-log={}", log.display()),
    ]);
    succeed(&output);
    let mut counts = BTreeMap::new();
    for rank in 0..3 {
        for line in fs::read_to_string(log.join(format!("even-{rank}.log"))).unwrap().lines() {
            let Some(computed) = line.strip_prefix("computed 0 ") else { continue };
            let mut numbers = computed.split(' ');
            let (iteration, epoch) = (numbers.next().unwrap(), numbers.next().unwrap());
            assert!(iteration.parse::<u64>().unwrap() < 2 * 16, "{line}");
            for index in numbers {
                *counts.entry(format!("{epoch} {index}")).or_insert(0) += 1;
            }
        }
    }
    let expected: BTreeMap<String, i32> =
        (0..2).flat_map(|epoch| (0..1000).map(move |index| (format!("{epoch} {index}"), 1))).collect();
    assert_eq!(counts, expected);
}

#[test]
fn a_resumed_run_is_the_undisturbed_run_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, steps: u64, extra: &[&str]| {
        let checkpoints = format!("--checkpoint-dir={}", folder.path().join(name).display());
        let steps = format!("--steps={steps}");
        let fixed = ["--workers=2", "--policy=even", "--checkpoint-every=10", &checkpoints, &steps];
        succeed(&launch(&[&fixed, extra].concat()));
    };
    let end = |name: &str| {
        let checkpoint = folder.path().join(name).join("iteration-00000020");
        (
            fs::read(checkpoint.join("even.safetensors")).unwrap(),
            fs::read(checkpoint.join("state.json")).unwrap(),
        )
    };
    // With twice the batch that the learning rate was chosen for, the run stops inside a ramp of 16
    // iterations.
    for (undisturbed, resumed, batch) in
        [("undisturbed", "resumed", None), ("ramp", "ramp resumed", Some("--per-worker-batch=64"))]
    {
        run(undisturbed, 20, &Vec::from_iter(batch));
        run(resumed, 10, &Vec::from_iter(batch));
        run(resumed, 20, &Vec::from_iter(batch.into_iter().chain(["--resume"])));
        assert!(end(undisturbed) == end(resumed), "{undisturbed}");
    }
    let checkpoints = format!("--checkpoint-dir={}", folder.path().join("resumed").display());
    let other = launch(&["--workers=2", "--policy=even", "--resume", "--seed=2", &checkpoints]);
    assert!(!other.status.success());
    assert!(String::from_utf8_lossy(&other.stderr).contains("its seed is 1, this run's is 2"));
}

#[test]
fn without_a_predictor_training_continues_with_an_even_split() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.jsonl");
    let words = succeed(&launch(&[
        "--workers=2",
        "--policy=even,base,evenstep",
        "--epochs=1",
        "--verify-gradient=8",
        &format!("--record={}", path.display()),
        &unused_server(),
    ]));
    assert!(words.contains("unreachable"), "{words}");
    let iterations = iterations(&path);
    assert_eq!(iterations.len(), 48);
    assert!(iterations.iter().all(|line| line.decision.is_none()));
    assert!(iterations.iter().any(|line| line.gradient_difference.is_some_and(|value| value > 0.0)));
    // All policies ran the same steps on the same samples, so the losses are bitwise equal.
    let losses = |policy| -> Vec<f64> {
        let mine = iterations.iter().filter(|line| line.policy == policy);
        mine.map(|line| line.loss).collect()
    };
    let [even, base, evenstep] = [Policy::Even, Policy::Base, Policy::Evenstep].map(losses);
    assert_eq!((even.len(), &even, &even), (16, &base, &evenstep));
    for line in &iterations {
        assert_eq!(line.workers.iter().map(|worker| worker.local_batch).sum::<u64>(), line.global_batch);
        // The slowest worker does not wait.
        assert!(line.workers.iter().any(|worker| worker.barrier_wait_s == 0.0));
    }
}

#[test]
fn a_table_has_each_iteration_and_its_load() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.csv");
    let record = format!("--record={}", path.display());
    succeed(&launch(&["--workers=1", "--policy=even", "--contend=steady", "--steps=3", &record]));
    let mut table = csv::Reader::from_path(&path).unwrap();
    let names = table.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = table.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 3);
    let cell = |row: &csv::StringRecord, name: &str| {
        row[names.iter().position(|one| one == name).unwrap()].to_owned()
    };
    let number = |row: &csv::StringRecord, name: &str| cell(row, name).parse::<f64>().unwrap();
    for (iteration, row) in rows.iter().enumerate() {
        assert_eq!((cell(row, "iter"), cell(row, "batch")), (iteration.to_string(), "64".to_owned()));
        let speed = 64.0 / (number(row, "iter_ms") / 1e3);
        assert!((number(row, "speed") / speed - 1.0).abs() < 1e-2, "{row:?}");
        // One to three threads, and a constant number.
        let threads = number(&rows[0], "truth_load_start");
        assert!([1.0, 2.0, 3.0].contains(&threads), "{row:?}");
        assert_eq!(["truth_load_start", "truth_load_mean"].map(|name| number(row, name)), [threads; 2]);
        assert_eq!(cell(row, "memory_used").is_empty(), iteration == 0, "{row:?}");
    }
    assert!(rows.windows(2).all(|pair| number(&pair[0], "t_start") < number(&pair[1], "t_start")));
}

#[test]
fn a_speed_that_sways_is_that_of_its_law() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.csv");
    let record = format!("--record={}", path.display());
    // 64 samples of 0.25 ms each, with up to three simulated busy threads.
    let words = succeed(&launch(&[
        "--workers=1",
        "--policy=even",
        "--vary-pace",
        "--pace-unit-ms=0.25",
        "--steps=3",
        &record,
    ]));
    assert!(words.contains("imposed speeds [1.0]"), "{words}");
    let mut table = csv::Reader::from_path(&path).unwrap();
    for row in table.deserialize::<BTreeMap<String, String>>().map(Result::unwrap) {
        let number = |name: &str| row[name].parse::<f64>().unwrap();
        assert!((0.0..=3.0).contains(&number("truth_load_mean")), "{row:?}");
        let alone_ms = number("iter_ms") / (1.0 + number("truth_load_mean"));
        assert!(alone_ms >= 15.99 && number("truth_pace") == 1.0, "{row:?}");
    }
}

/// Starts a training run and waits for the first line of its progress. Returns the process and its standard
/// error.
fn start_and_wait(arguments: &[&str]) -> (Child, BufReader<std::process::ChildStderr>) {
    let mut child = trainer(arguments).spawn().unwrap();
    let mut words = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(" loss ") {
        line.clear();
        assert!(words.read_line(&mut line).unwrap() > 0, "the run ended before its first iteration");
    }
    (child, words)
}

/// Returns the process ids of the workers that a launcher started.
fn children(pid: u32) -> Vec<String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    fs::read_to_string(path).unwrap().split_whitespace().map(ToOwned::to_owned).collect()
}

#[test]
fn a_killed_worker_ends_all_with_a_clear_error() {
    let (mut launch, words) =
        start_and_wait(&["launch", "--workers=3", "--policy=even", "--steps=1000000", "--hidden=16"]);
    let victim = &children(launch.id())[1];
    assert!(Command::new("kill").args(["-KILL", victim]).status().unwrap().success());
    let words: Vec<String> = words.lines().map(Result::unwrap).collect();
    assert_eq!(launch.wait().unwrap().code(), Some(1));
    let output_has = |what: &str| words.iter().any(|line| line.contains(what));
    assert!(output_has(&format!("launch: rank 1 (pid {victim}) was killed by signal 9")), "{words:?}");
    assert!(output_has("rank 0: error: iteration "), "{words:?}");
    assert!(fs::read_to_string(format!("/proc/{victim}/status")).is_err());
}

#[test]
fn sigterm_finishes_the_iteration_and_writes_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = format!("--checkpoint-dir={}", folder.path().display());
    let (mut launch, words) = start_and_wait(&[
        "launch",
        "--workers=2",
        "--policy=even",
        "--steps=1000000",
        "--hidden=16",
        "--checkpoint-every=1000000",
        &checkpoints,
    ]);
    let pid = launch.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let words: Vec<String> = words.lines().map(Result::unwrap).collect();
    assert_eq!(launch.wait().unwrap().code(), Some(128 + 15), "{words:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{words:?}");
}

#[test]
fn bad_values_are_named() {
    for (arguments, word) in [
        (&["--workers=2", "--pace=1,2,3"] as &[&str], "--pace"),
        (&["--workers=2", "--quantum=5"], "--quantum"),
        (&["--workers=0"], "--workers"),
    ] {
        let output = launch(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(words.contains(word), "{arguments:?}: {words}");
    }
}

#[test]
fn the_reason_for_the_cpu_is_printed_once_and_is_an_error_if_cuda_is_required() {
    if Path::new("/proc/driver/nvidia/version").exists() {
        eprintln!("SKIPPED the_reason_for_the_cpu_is_printed_once_..: this machine has an NVIDIA driver");
        return;
    }
    let run = ["--workers=2", "--policy=even", "--steps=2"];
    let words = succeed(&launch(&run));
    assert_eq!(words.matches("rank 0: computing on the CPU: ").count(), 1, "{words}");
    assert_eq!(words.matches("computing on the CPU").count(), 1, "{words}");
    assert!(!succeed(&launch(&[&run[..], &["--device=cpu"]].concat())).contains("computing on"));
    let required = launch(&[&run[..], &["--device=cuda"]].concat());
    let words = String::from_utf8_lossy(&required.stderr);
    assert!(!required.status.success() && words.contains("--device cuda: "), "{words}");
}

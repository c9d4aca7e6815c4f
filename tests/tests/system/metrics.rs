//! The launcher's Prometheus metrics of a real run, compared with the run's record.

use std::collections::BTreeMap;

use evenstep_tests::training::Training;
use evenstep_tests::wait::until;
use evenstep_tests::{Client, Predictor, binaries, process};
use rustix::process::Signal;
use serde_json::Value;

/// Returns the launcher's metrics by series.
fn scrape(client: &Client) -> BTreeMap<String, f64> {
    let text = client.get("/metrics").body;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let series = lines.map(|line| line.rsplit_once(' ').expect("a series and its value"));
    series.map(|(name, value)| (name.to_owned(), value.parse().expect("a number"))).collect()
}

/// Returns a client of the launcher's metrics page, from its output.
fn metrics_of(training: &Training) -> Client {
    let url = training.process.line("the address of its metrics", |line| {
        Some(line.split_once("metrics: ")?.1.strip_suffix("/metrics")?.to_owned())
    });
    Client::new(&url)
}

#[test]
fn the_launcher_counts_what_the_record_says() {
    let name = "metrics::the_launcher_counts_what_the_record_says";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let Some(predictor) = binaries::find("evenstep-predictor", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let predictor = Predictor::start(&predictor, folder.path());
    let server = format!("--server={}", predictor.url);
    let mut training = Training::start(
        &trainer,
        folder.path(),
        &[
            "--workers=2",
            "--pace=1,2",
            "--policy=even,evenstep",
            "--block=2",
            "--job=job",
            "--steps=100000",
            "--metrics-listen=127.0.0.1:0",
            &server,
        ],
    );
    let client = metrics_of(&training);
    let of = |name: &str, policy: &str| match policy {
        "even" => format!("evenstep_trainer_{name}{{policy=\"even\"}}"),
        policy => format!("evenstep_trainer_{name}{{policy=\"{policy}\",job_id=\"job\"}}"),
    };
    let seen = until("both policies have trained for a while", || {
        let seen = scrape(&client);
        (seen.get(&of("iterations_total", "evenstep")).is_some_and(|done| *done >= 30.0)).then_some(seen)
    });
    assert_eq!(seen["evenstep_launcher_workers{state=\"running\"}"], 2.0);
    assert_eq!(seen["evenstep_launcher_iterations_lost_total"], 0.0);
    training.process.terminate();
    training.process.wait();

    for policy in ["even", "evenstep"] {
        let value = |name: &str| seen[&of(name, policy)];
        let count = value("iterations_total") as usize;
        let lines = &training.iterations(policy)[..count];
        let last = lines.last().unwrap();
        let sum = |number: &dyn Fn(&Value) -> f64| lines.iter().map(number).sum::<f64>();
        let workers = |name: &'static str| {
            move |line: &Value| {
                let workers = line["workers"].as_array().unwrap();
                workers.iter().map(|worker| worker[name].as_f64().unwrap()).sum::<f64>()
            }
        };
        for (name, expected) in [
            ("samples_total", sum(&|line| line["global_batch"].as_f64().unwrap())),
            ("request_seconds_total", sum(&|line| line["request_s"].as_f64().unwrap())),
            ("step_duration_seconds_sum", sum(&|line| line["step_time_s"].as_f64().unwrap())),
            ("step_duration_seconds_count", count as f64),
            ("compute_seconds_total", sum(&workers("compute_time_s"))),
            ("barrier_wait_seconds_total", sum(&workers("barrier_wait_s"))),
            ("loss", last["loss"].as_f64().unwrap()),
            ("iteration", last["iteration"].as_f64().unwrap()),
            ("workers", 2.0),
        ] {
            assert!(
                (value(name) - expected).abs() <= 1e-9 * expected.abs(),
                "{name}: {} {expected}",
                value(name)
            );
        }
        let missed = lines.iter().filter(|line| line["generation"].is_null()).count() as f64;
        match policy {
            "even" => assert!(!seen.contains_key(&of("allocations_missed_total", policy))),
            _ => assert_eq!(value("allocations_missed_total"), missed),
        }
    }
}

#[test]
fn restarts_are_counted() {
    let name = "metrics::restarts_are_counted";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let training = Training::start(
        &trainer,
        folder.path(),
        &["--workers=2", "--policy=even", "--elastic", "--steps=1000000", "--metrics-listen=127.0.0.1:0"],
    );
    let client = metrics_of(&training);
    let seen = |name: &str, at_least: f64| {
        until(name, || scrape(&client).get(name).filter(|value| **value >= at_least).copied())
    };
    seen("evenstep_trainer_iterations_total{policy=\"even\"}", 3.0);
    // Kills rank 0: the next rank 0 continues to report metrics.
    process::send(training.worker(0), Signal::KILL);
    assert_eq!(seen("evenstep_launcher_restarts_total", 1.0), 1.0);
    seen("evenstep_trainer_regroups_total{policy=\"even\"}", 1.0);
    let done = scrape(&client)["evenstep_trainer_iterations_total{policy=\"even\"}"];
    seen("evenstep_trainer_iterations_total{policy=\"even\"}", done + 3.0);
    assert_eq!(scrape(&client)["evenstep_launcher_restarts_left"], 9.0);
}

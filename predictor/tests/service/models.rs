//! Background learning: networks, stored models, and models passed from one job to the next.

use evenstep_protocol::{ForecastView, JobSpec, JoinRequest, WorkerForecastView};
use evenstep_tests::wait::until;

use crate::support::{Service, allocate_request_with_reports, worker_id};

/// Enough iterations for a first fit, and some after it.
const ITERATIONS: u64 = 230;

/// Trains one worker on this device for `iterations` iterations. Its speed follows the driver that
/// `support::report` sends.
fn train(service: &Service, job: &str, device: &str, iterations: u64) {
    service.client.put_job(job, &JobSpec::new(16));
    let request = JoinRequest { device: Some(device.into()), ..JoinRequest::new(worker_id(0)) };
    service.client.post(&format!("/v1/jobs/{job}/workers"), &request);
    iterate(service, job, 0..iterations);
}

fn iterate(service: &Service, job: &str, iterations: std::ops::Range<u64>) {
    let generation = service.client.job(job).generation;
    for iteration in iterations {
        // The stall share read before this iteration, as computed by `support::report`.
        let stalled = (iteration.saturating_sub(2) % 10) as f64 / 10.0;
        let request =
            allocate_request_with_reports(job, generation, iteration, &[100.0 * (1.0 - 0.5 * stalled)]);
        assert_eq!(service.client.allocate(&request).status, 200);
    }
}

fn stored(service: &Service, job: &str) -> ForecastView {
    until("the models are stored", || {
        let view = service.client.forecast(job);
        let learned: u64 = view.workers.iter().map(|worker| worker.observations).sum();
        (learned > 0 && view.refits.stored_observations == learned).then_some(view)
    })
}

fn names(worker: &WorkerForecastView) -> Vec<&str> {
    worker.models.iter().map(|model| model.model.as_str()).collect()
}

#[test]
fn networks_are_fitted_in_the_background_and_models_survive_a_crash() {
    let mut service = Service::start_with(&["--refit-interval-s=1"]);
    train(&service, "long", "a machine", ITERATIONS);
    until("a network is fitted", || {
        names(&service.client.forecast("long").workers[0]).contains(&"narx").then_some(())
    });
    // Models that include this iteration include the network.
    iterate(&service, "long", ITERATIONS..ITERATIONS + 1);
    let before = stored(&service, "long");
    assert_eq!((before.refits.fitted, before.refits.failed), (1, 0), "{:?}", before.refits);
    assert!(before.refits.fit_time_s > 0.0);
    assert!(names(&before.workers[0]).contains(&"narx"), "{before:?}");
    service.kill_and_restart();
    let after = service.client.forecast("long");
    assert_eq!(
        after.workers, before.workers,
        "a restart continues with the same models, including the network"
    );
    assert_eq!(after.refits.fitted, 0, "no network was fitted again");
}

#[test]
fn a_new_worker_starts_from_models_of_the_same_device() {
    let service = Service::start_with(&["--refit-interval-s=1"]);
    train(&service, "first", "NVIDIA H200", 150);
    stored(&service, "first");
    let weights = |job: &str| -> Vec<f64> {
        let view = service.client.forecast(job);
        view.workers[0].models.iter().map(|model| model.weight).collect()
    };
    // The first report is skipped, and the second is the first observation: the weights are the initial ones.
    train(&service, "like", "NVIDIA H200", 3);
    train(&service, "unlike", "another", 3);
    let (learned, like, unlike) = (weights("first"), weights("like"), weights("unlike"));
    let same =
        |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9);
    assert!(same(&like, &learned), "{like:?} from {learned:?}");
    assert!(!same(&unlike, &learned), "{unlike:?} from {learned:?}");
}

#[test]
fn models_are_stored_at_a_shutdown() {
    let mut service = Service::start_with(&["--refit-interval-s=3600"]);
    train(&service, "job", "a machine", 10);
    let before = service.client.forecast("job");
    service.predictor.process.terminate();
    assert!(service.predictor.process.wait().success());
    // Without the models, the worker would be as new.
    service.store.rows("DELETE FROM report RETURNING CAST(iteration AS TEXT)");
    service.restart();
    assert_eq!(service.client.forecast("job").workers, before.workers);
}

#[test]
fn models_in_another_format_are_learned_again_from_the_reports() {
    let mut service = Service::start_with(&["--refit-interval-s=1"]);
    train(&service, "job", "a machine", 40);
    let before = stored(&service, "job");
    service.predictor.process.kill();
    for table in ["model_state", "device_model"] {
        let sql = format!("UPDATE {table} SET format = format - 1 RETURNING CAST(format AS TEXT)");
        let rows = service.store.rows(&sql);
        assert!(!rows.is_empty(), "{table}");
    }
    service.restart();
    let after = service.client.forecast("job");
    assert_eq!(after.workers, before.workers);
    assert!(after.workers[0].observations > 0);
}

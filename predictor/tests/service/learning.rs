//! Learned models do not depend on how reports arrive, nor on restarts.

use evenstep_protocol::{JobSpec, WorkerReport};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::support::{Service, allocate_request, join_all, report};

const WORKERS: usize = 3;
const ITERATIONS: u64 = 60;

/// The reports of an iteration. Some are missing.
fn reports(iteration: u64) -> Vec<WorkerReport> {
    let mut random = ChaCha8Rng::seed_from_u64(iteration);
    let mut report = |worker: usize| {
        let speed = 100.0 * (worker + 1) as f64 * random.random_range(0.7..1.3);
        let batch = random.random_range(8..40);
        random.random_bool(0.9).then(|| report(worker, iteration, batch, speed))
    };
    (0..WORKERS).filter_map(&mut report).collect()
}

/// Sends the reports of each iteration in packages of `size`, in any order, with repeated requests for the next
/// iteration. The service is killed before some of them.
fn train(service: &mut Service, job: &str, size: usize, kills: &[u64]) {
    service.client.put_job(job, &JobSpec::new(64));
    let generation = join_all(&service.client, job, WORKERS);
    let mut random = ChaCha8Rng::seed_from_u64(size as u64);
    service.client.allocate(&allocate_request(job, generation, 0));
    for iteration in 1..=ITERATIONS {
        let mut reports = reports(iteration - 1);
        reports.shuffle(&mut random);
        for package in reports.chunks(size) {
            if kills.contains(&iteration) {
                service.kill_and_restart();
            }
            let mut request = allocate_request(job, generation, iteration);
            request.reports = package.to_vec();
            assert_eq!(service.client.allocate(&request).status, 200);
        }
    }
}

#[test]
fn packages_and_restarts_do_not_change_forecasts() {
    let mut service = Service::start_with(&["--refit-interval-s=1"]);
    train(&mut service, "together", WORKERS, &[]);
    train(&mut service, "separate", 1, &[]);
    train(&mut service, "restarted", 2, &[1, 7, 20, 21, 48, 60]);
    let forecast = |service: &Service, job: &str| service.client.forecast(job).workers;
    let expected = forecast(&service, "together");
    assert!(expected.iter().all(|worker| worker.observations > ITERATIONS / 2), "{expected:?}");
    for job in ["separate", "restarted"] {
        assert_eq!(forecast(&service, job), expected, "{job}");
    }
    service.kill_and_restart();
    for job in ["together", "separate", "restarted"] {
        assert_eq!(forecast(&service, job), expected, "{job} after a restart");
    }
}

/// A worker's late reports are stored but not learned, also not by a replay. A rejoin after the models were stored is not
/// lost either.
#[test]
fn late_reports_and_rejoins_are_the_same_after_a_restart() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(64));
    let mut generation = join_all(&service.client, "job", 2);
    let speed = |worker: usize, iteration: u64| 100.0 + 10.0 * ((iteration * 7 + worker as u64) % 5) as f64;
    let send = |service: &Service, generation: u64, iteration: u64, reports: Vec<WorkerReport>| {
        let mut request = allocate_request("job", generation, iteration);
        request.reports = reports;
        assert_eq!(service.client.allocate(&request).status, 200);
    };
    let of = |worker: usize, iteration: u64| report(worker, iteration, 32, speed(worker, iteration));
    send(&service, generation, 0, Vec::new());
    for iteration in 1..30 {
        send(&service, generation, iteration, vec![of(0, iteration - 1)]);
    }
    // All reports of the other worker, of which only the newest are not late.
    send(&service, generation, 29, (0..29).map(|iteration| of(1, iteration)).collect());
    let before = service.client.forecast("job").workers;
    assert!((1..6).contains(&before[1].observations), "{before:?}");
    service.kill_and_restart();
    assert_eq!(service.client.forecast("job").workers, before);

    service.client.leave("job", "node/1");
    generation = service.client.join("job", "node/1").generation;
    assert_eq!(generation, 4);
    for iteration in 29..50 {
        let reports = [0, 1].map(|worker| of(worker, iteration)).to_vec();
        send(&service, generation, iteration + 1, reports);
    }
    let before = service.client.forecast("job").workers;
    assert!((15..22).contains(&before[1].observations), "the rejoined worker starts again: {before:?}");
    service.kill_and_restart();
    assert_eq!(service.client.forecast("job").workers, before);
}

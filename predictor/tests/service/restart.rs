//! The state after a restart, and the shutdown of the service.

use std::io::{Read, Write};
use std::net::TcpStream;

use evenstep_protocol::{JobSpec, LearningRateRule, WorkersView};
use evenstep_tests::wait::until;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::support::{Service, allocate_request, allocate_request_with_reports, join_all};

/// The workers without the times of their last requests: after a restart, each worker starts with a full
/// lease.
fn workers(service: &Service, job: &str) -> WorkersView {
    let mut view: WorkersView = service.client.get(&format!("/v1/jobs/{job}/workers")).json();
    view.workers.iter_mut().for_each(|worker| worker.last_seen_unix_ms = 0);
    view
}

#[test]
fn a_restart_recovers_jobs_workers_series_models_and_what_was_planned() {
    let mut service = Service::start();
    let spec = JobSpec {
        quantum: 4,
        min_local_batch: Some(4),
        max_local_batch: Some(40),
        rule: LearningRateRule::None,
        min_workers: 2,
        lease_s: 3600.0,
        min_gain: 0.02,
        ..JobSpec::new(64)
    };
    service.client.put_job("measured", &spec);
    service.client.put_job("empty", &JobSpec::new(7));
    let generation = join_all(&service.client, "measured", 4);
    service.client.leave("measured", "node/3");
    let mut random = ChaCha8Rng::seed_from_u64(5);
    // More iterations than responses in memory.
    for iteration in 0..300 {
        let speeds: Vec<f64> =
            (1..=3).map(|rank| 100.0 * f64::from(rank) * random.random_range(0.8..1.2)).collect();
        let request = allocate_request_with_reports("measured", generation + 1, iteration, &speeds);
        assert_eq!(service.client.allocate(&request).status, 200);
    }
    let seen = |service: &Service| {
        let client = &service.client;
        let jobs =
            ["measured", "empty"].map(|job| (client.job(job), workers(service, job), client.forecast(job)));
        let speeds = client.get("/v1/jobs/measured/speeds?from=0&limit=1000").body;
        let allocations = client.get("/v1/jobs/measured/allocations?from=0&limit=1000").body;
        (jobs, speeds, allocations, client.get("/v1/jobs").body)
    };
    let before = seen(&service);
    assert_eq!(before.0[0].0.next_iteration, 300);
    assert!(before.0[0].2.workers.iter().all(|worker| worker.speed_samples_per_s.is_some()));
    service.kill_and_restart();
    assert!(seen(&service) == before, "after kill -9:\n{:#?}\nbefore:\n{:#?}", seen(&service).0, before.0);
    service.predictor.process.terminate();
    assert!(service.predictor.process.wait().success());
    service.restart();
    assert!(seen(&service) == before, "after SIGTERM:\n{:#?}\nbefore:\n{:#?}", seen(&service).0, before.0);
}

/// Schemas before `0007_hysteresis` (SQLite) and `0003_hysteresis` (PostgreSQL) stored job options with an
/// object `calm`.
#[test]
fn job_options_of_earlier_versions_are_migrated() {
    let mut service = Service::start();
    let spec = JobSpec::new(64);
    service.client.put_job("job", &spec);
    service.predictor.process.kill();
    let mut earlier = serde_json::to_value(&spec).unwrap();
    earlier["calm"] = serde_json::json!(
        {"dead_band": 0.0, "dwell": 3, "change_cost_s": 0.0, "trust": 2.0, "fine_tune_below": 0.0}
    );
    assert_eq!(service.store.rows(&format!("UPDATE job SET spec = '{earlier}' RETURNING spec")).len(), 1);
    let unmigrated = "DELETE FROM _sqlx_migrations WHERE description = 'hysteresis' RETURNING description";
    assert_eq!(service.store.rows(unmigrated).len(), 1);
    service.restart();
    assert_eq!(service.client.job("job").spec, Some(spec));
}

/// Earlier versions stored every option.
#[test]
fn stored_job_options_that_were_removed_are_read() {
    let mut service = Service::start();
    let spec = JobSpec::new(64);
    for job in ["job", "other"] {
        service.client.put_job(job, &spec);
    }
    service.predictor.process.kill();
    let mut earlier = serde_json::to_value(&spec).unwrap();
    earlier["max_batch_growth"] = serde_json::json!(2.0);
    earlier["memory_headroom"] = serde_json::json!(0.1);
    let set = |job: &str, spec: &serde_json::Value| {
        let set = format!("UPDATE job SET spec = '{spec}' WHERE job_id = '{job}' RETURNING spec");
        assert_eq!(service.store.rows(&set).len(), 1);
    };
    set("job", &earlier);
    earlier["flap_cooldown_s"] = serde_json::json!(5.0);
    set("other", &earlier);
    service.restart();
    let client = &service.client;
    assert_eq!(client.job("job").spec, Some(spec));
    // A value without effect does not keep the job from loading.
    let other = client.get("/v1/jobs/other").json::<serde_json::Value>();
    assert_eq!(other["spec"]["flap_cooldown_s"], 5.0, "{other}");
}

#[test]
fn sigterm_finishes_open_requests_and_leaves_one_file() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(64));
    let generation = join_all(&service.client, "job", 2);
    assert_eq!(service.client.get("/readyz").status, 200);
    let beside = |ending: &str| service.store.file().map(|file| file.with_extension(ending));
    let (wal, shared_memory) = (beside("db-wal"), beside("db-shm"));
    assert!(wal.as_ref().is_none_or(|wal| wal.exists()), "the write-ahead log exists while the service runs");
    // A request that is half sent when the service receives SIGTERM.
    let body = serde_json::to_string(&allocate_request("job", generation, 0)).unwrap();
    let mut half = TcpStream::connect(service.predictor.url.strip_prefix("http://").unwrap()).unwrap();
    let length = body.len();
    let head = format!(
        "POST /allocate HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    );
    half.write_all(head.as_bytes()).unwrap();
    // The service sends `100 Continue` when it wants the body: the request is in flight.
    let mut go_on = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    half.read_exact(&mut go_on).unwrap();
    assert!(go_on.starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&go_on));
    half.write_all(&body.as_bytes()[..10]).unwrap();
    service.predictor.process.terminate();
    until("it accepts no more requests", || match service.client.try_get("/readyz") {
        Ok(reply) => (reply.status == 503).then(|| drop(reply.problem(503, "draining"))),
        Err(_) => Some(()),
    });
    half.write_all(&body.as_bytes()[10..]).unwrap();
    let mut answer = String::new();
    half.read_to_string(&mut answer).unwrap();
    // Jobs of a shared store are given up first, so that other predictors can serve them at once.
    let is_shared = service.store.file().is_none();
    assert!(answer.starts_with(if is_shared { "HTTP/1.1 503" } else { "HTTP/1.1 200" }), "{answer}");
    assert_eq!(service.predictor.process.wait().code(), Some(0));
    assert!(wal.iter().chain(&shared_memory).all(|file| !file.exists()), "only one file remains");
    service.restart();
    let status = service.client.allocated("job", 0).status;
    assert_eq!(status, if is_shared { 404 } else { 200 });
}

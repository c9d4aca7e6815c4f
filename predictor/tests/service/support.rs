//! A separate service for each test, and the requests of trainers.

use std::collections::BTreeMap;
use std::path::Path;

use evenstep_protocol::{AllocateRequest, JobId, WorkerId, WorkerReport};
use evenstep_tests::{Client, Predictor, Store};

/// The binary under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_evenstep-predictor");

/// A predictor with an empty store: SQLite, or PostgreSQL if `EVENSTEP_TESTS_STORE` is set so.
pub struct Service {
    pub predictor: Predictor,
    pub client: Client,
    pub store: Store,
}

impl Service {
    /// Starts without background refits, so that only the requests of the test determine the results.
    pub fn start() -> Self {
        Self::start_with(&["--refit-interval-s=86400"])
    }

    pub fn start_with(flags: &[&str]) -> Self {
        let store = Store::fresh();
        // One URL for every port: a restart is the same predictor, and does not wait for a lease.
        let flags = [&["--url=http://predictor.test"], flags].concat();
        let predictor = Predictor::start_over(Path::new(BINARY), &store.address(), &flags);
        Self { client: predictor.client(), predictor, store }
    }

    pub fn kill_and_restart(&mut self) {
        self.predictor.process.kill();
        self.restart();
    }

    /// Starts again after the end of the process.
    pub fn restart(&mut self) {
        self.predictor.restart();
        self.client = self.predictor.client();
    }
}

pub fn job_id(job: &str) -> JobId {
    JobId::new(job).unwrap()
}

pub fn worker_id(worker: usize) -> WorkerId {
    WorkerId::new(format!("node/{worker}")).unwrap()
}

/// Joins `node/0` to `node/<workers - 1>` and returns the generation.
pub fn join_all(client: &Client, job: &str, workers: usize) -> u64 {
    (0..workers).fold(0, |_, worker| client.join(job, worker_id(worker).as_str()).generation)
}

/// A request without reports.
pub fn allocate_request(job: &str, generation: u64, iteration: u64) -> AllocateRequest {
    AllocateRequest::new(job_id(job), generation, iteration)
}

/// A report of an iteration at `speed` samples per second.
pub fn report(worker: usize, iteration: u64, local_batch: u64, speed: f64) -> WorkerReport {
    WorkerReport {
        barrier_wait_s: Some(0.001),
        drivers: BTreeMap::from([
            ("psi_cpu_some".to_owned(), (iteration % 10) as f64 / 10.0),
            ("other_cpu".to_owned(), 1.0 / speed),
        ]),
        ..WorkerReport::new(worker_id(worker), iteration, local_batch, local_batch as f64 / speed)
    }
}

/// A request with the reports of the previous iteration, for workers of these speeds and even shares of 64
/// samples.
pub fn allocate_request_with_reports(
    job: &str,
    generation: u64,
    iteration: u64,
    speeds: &[f64],
) -> AllocateRequest {
    let mut request = allocate_request(job, generation, iteration);
    if let Some(before) = iteration.checked_sub(1) {
        let reports = speeds.iter().enumerate().map(|(worker, speed)| report(worker, before, 64, *speed));
        request.reports = reports.collect();
    }
    request
}

/// The sum of a metric over its labels.
pub fn metric(client: &Client, name: &str) -> f64 {
    let text = client.get("/metrics").body;
    let values = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
    values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

//! Concurrent clients: ranks of several jobs, agents of several nodes, and a worker that joins and leaves.
//!
//! Each client repeats unacknowledged requests, as real clients do, and records the responses in the ledger.
//! A client ends if the predictor is down, or when it is stopped.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use evenstep_protocol::{
    AllocateRequest, JobId, JobSpec, JoinRequest, JoinResponse, NodeId, NodeSample, TelemetryBatch,
    TelemetryResponse, WorkerId, WorkerReport,
};
use evenstep_tests::wait::until;
use evenstep_tests::{Client, Reply};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::audit;
use crate::ledger::{JOBS, Ledger, NODES};

/// Number of permanent workers in each job.
pub const WORKERS: usize = 4;
/// Number of ranks of a job with concurrent requests.
const CONCURRENT_RANKS: u64 = 2;
/// Maximum number of samples in a batch.
const BATCH_MAX: u64 = 40;

/// State shared between a load and its test.
#[derive(Debug, Default)]
pub struct Load {
    /// Set to true to stop the load.
    pub stop: AtomicBool,
    /// Number of successful requests.
    pub progress: AtomicU64,
    /// Number of temporary rejections.
    pub refusals: AtomicU64,
}

/// Creates the jobs with the permanent workers.
pub fn begin(client: &Client, ledger: &Ledger) {
    for job in JOBS {
        // No lease expires.
        client.put_job(job, &JobSpec { lease_s: 3600.0, ..JobSpec::new(256) });
        for worker in 0..WORKERS {
            ledger.heard(job, client.join(job, worker_id(worker).as_str()).generation);
        }
    }
}

/// Ends the requests when it is dropped.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Load {
    /// Runs all clients against the predictor at `url` in parallel with `meanwhile`. Returns when all clients
    /// have ended.
    pub fn run<T>(&self, url: &str, ledger: &Ledger, seed: u64, meanwhile: impl FnOnce() -> T) -> T {
        self.run_on(&[url], ledger, seed, meanwhile)
    }

    /// Runs all clients against several predictors. If one is down or rejects temporarily, a client uses the
    /// next.
    pub fn run_on<T>(&self, urls: &[&str], ledger: &Ledger, seed: u64, meanwhile: impl FnOnce() -> T) -> T {
        let client = |seed_of_client| LoadClient {
            load: self,
            ledger,
            clients: urls.iter().map(|url| Client::following(url)).collect(),
            at: Cell::new(0),
            random: ChaCha8Rng::seed_from_u64(seed << 8 | seed_of_client),
        };
        thread::scope(|scope| {
            for (number, node) in (0..).zip(NODES) {
                scope.spawn(move || client(number).send_samples(node));
            }
            for (number, job) in (0..).zip(JOBS) {
                for rank in 0..CONCURRENT_RANKS {
                    scope.spawn(move || client(16 + CONCURRENT_RANKS * number + rank).train(job));
                }
                scope.spawn(move || client(32 + number).read_when_visible(job));
            }
            scope.spawn(move || client(64).join_and_leave(JOBS[0]));
            // Also if it panics: the scope waits for its threads.
            let _stop = StopOnDrop(&self.stop);
            meanwhile()
        })
    }

    /// Waits until this number of further requests have succeeded.
    pub fn goes_on(&self, requests: u64) {
        let begun = self.progress.load(Ordering::SeqCst);
        until("requests succeed", || {
            (self.progress.load(Ordering::SeqCst) >= begun + requests).then_some(())
        });
    }
}

/// One client.
struct LoadClient<'a> {
    load: &'a Load,
    ledger: &'a Ledger,
    clients: Vec<Client>,
    /// Index of the predictor that responded last.
    at: Cell<usize>,
    random: ChaCha8Rng,
}

impl LoadClient<'_> {
    fn stopped(&self) -> bool {
        self.load.stop.load(Ordering::SeqCst)
    }

    fn client(&self) -> &Client {
        &self.clients[self.at.get() % self.clients.len()]
    }

    fn next(&self) {
        self.at.set(self.at.get() + 1);
    }

    /// Sends a request until the response is not a temporary rejection. Returns `None` if every predictor is
    /// down or the load ends.
    fn send_until_accepted(&self, send: impl Fn(&Client) -> Result<Reply, ureq::Error>) -> Option<Reply> {
        until("the predictor responds", || {
            let Ok(reply) = send(self.client()) else {
                self.next();
                return (self.clients.len() == 1 || self.stopped()).then_some(None);
            };
            if matches!(reply.status, 429 | 503) {
                self.next();
                assert!(reply.retry_after.is_some(), "{reply:?}");
                reply.problem(reply.status, slug(&reply));
                self.load.refusals.fetch_add(1, Ordering::SeqCst);
                return self.stopped().then_some(None);
            }
            self.load.progress.fetch_add(1, Ordering::SeqCst);
            Some(Some(reply))
        })
    }

    /// An agent. Its batches sometimes overlap, and it repeats unacknowledged batches.
    fn send_samples(mut self, node: &'static str) {
        let mut next = self.ledger.told().samples.entry(node).or_default().acknowledged;
        while !self.stopped() {
            let again =
                if self.random.random_bool(0.2) { self.random.random_range(0..=next.min(30)) } else { 0 };
            let first = next - again;
            let count = again + self.random.random_range(1..=BATCH_MAX);
            self.ledger.send(node, first + count);
            let batch = batch(node, first, count);
            let Some(reply) = self.send_until_accepted(|client| client.try_post("/v1/telemetry", &batch))
            else {
                return;
            };
            let answer: TelemetryResponse = reply.json();
            assert_eq!((answer.next_sequence, answer.stored + answer.duplicates), (first + count, count));
            assert!(answer.duplicates >= again, "acknowledged samples are stored: {answer:?}");
            next = first + count;
            self.ledger.told().samples.entry(node).or_default().acknowledged = next;
        }
    }

    /// A rank: requests one iteration after the other, reports the previous one, and sometimes reads an old
    /// allocation.
    fn train(mut self, job: &'static str) {
        let mut generation = self.ledger.told().generations[job];
        let mut iteration = self.ledger.told().next_iteration(job).saturating_sub(3);
        while !self.stopped() {
            let mut request = AllocateRequest::new(JobId::new(job).unwrap(), generation, iteration);
            let worker = self.random.random_range(0..WORKERS);
            let before = iteration.checked_sub(1);
            request.reports = before.iter().map(|before| report(worker, *before)).collect();
            let Some(reply) = self.send_until_accepted(|client| client.try_post("/allocate", &request))
            else {
                return;
            };
            if reply.status == 409 {
                generation =
                    reply.problem(409, "stale-generation").current_generation.expect("the current one");
                self.ledger.heard(job, generation);
                continue;
            }
            assert_eq!(reply.status, 200, "{reply:?}");
            self.ledger.hold(job, iteration, &reply.body);
            self.ledger.told().reports.extend(before.map(|before| (job, before, worker)));
            iteration += 1;
            if self.random.random_bool(0.2) {
                let old = self.random.random_range(0..iteration);
                let path = format!("/allocate?job_id={job}&iteration={old}");
                let Some(reply) = self.send_until_accepted(|client| client.try_get(&path)) else { return };
                let newest = self.ledger.told().newest(job, old);
                let is_void = reply.status == 409 && audit::is_void(&reply, newest.unwrap_or_default());
                // A rank that starts late finds iterations without a request. Workers may have joined, and the run may start
                // again with this iteration.
                if !is_void && reply.status != 404 {
                    assert_eq!(reply.status, 200, "{reply:?}");
                    self.ledger.hold(job, old, &reply.body);
                }
            }
        }
    }

    /// A rank that requests nothing and reads each allocation as soon as it is visible: it must not be
    /// visible before it is durable.
    fn read_when_visible(self, job: &'static str) {
        while !self.stopped() {
            let iteration = self.ledger.told().next_iteration(job);
            let path = format!("/allocate?job_id={job}&iteration={iteration}");
            let reply = until("an allocation is readable", || match self.client().try_get(&path) {
                Err(_) => {
                    self.next();
                    (self.clients.len() == 1 || self.stopped()).then_some(None)
                }
                Ok(reply) if reply.status == 200 => Some(Some(reply)),
                // Another client may have received it, and requests the next one.
                Ok(_) if self.stopped() || self.ledger.told().next_iteration(job) > iteration => Some(None),
                Ok(_) => None,
            });
            match reply {
                Some(reply) => self.ledger.hold(job, iteration, &reply.body),
                None if self.client().try_get("/healthz").is_err() => return,
                None => continue,
            };
        }
    }

    /// A worker that joins and leaves, with some requests of the other clients in between. The next one has another ID:
    /// a worker that departs often must wait before it rejoins.
    fn join_and_leave(mut self, job: &'static str) {
        let path = format!("/v1/jobs/{job}/workers");
        while !self.stopped() {
            let wait_for = self.load.progress.load(Ordering::SeqCst) + self.random.random_range(5..40);
            while self.load.progress.load(Ordering::SeqCst) < wait_for {
                if self.stopped() {
                    return;
                }
                // Without a predictor no client makes progress.
                if self.client().try_get("/healthz").is_err() && self.clients.len() == 1 {
                    return;
                }
            }
            let joins = self.random.random_bool(0.5);
            let number = {
                let mut told = self.ledger.told();
                told.guest = None;
                told.departures
            };
            let id = WorkerId::new(format!("guest/{number}")).unwrap();
            let request = JoinRequest::new(id.clone());
            let guest = format!("{path}/{}", id.as_str().replace('/', "%2F"));
            let ask = |client: &Client| match joins {
                true => client.try_post(&path, &request),
                false => client.try_delete(&guest),
            };
            let Some(reply) = self.send_until_accepted(ask) else { return };
            // The worker may try to leave before its first join.
            if reply.status != 404 {
                let answer: JoinResponse = reply.json();
                self.ledger.heard(job, answer.generation);
                self.ledger.told().departures += u64::from(!joins);
            }
            self.ledger.told().guest = Some((id, joins));
        }
    }
}

fn slug(reply: &Reply) -> &str {
    let (_, after) = reply.body.split_once(evenstep_protocol::Problem::TYPE_PREFIX).expect("a problem");
    after.split('"').next().expect("a slug")
}

/// The worker with this number.
pub fn worker_id(worker: usize) -> WorkerId {
    WorkerId::new(format!("node/{worker}")).unwrap()
}

/// Returns the report of a worker for an iteration. It is a function of both, so that it can be recognized
/// later.
pub fn report(worker: usize, iteration: u64) -> WorkerReport {
    let compute_time_s = 0.1 + 0.01 * worker as f64 + 0.001 * (iteration % 10) as f64;
    WorkerReport {
        barrier_wait_s: Some(0.001),
        drivers: BTreeMap::from([("psi_cpu_some".to_owned(), (iteration % 10) as f64 / 10.0)]),
        ..WorkerReport::new(worker_id(worker), iteration, 64, compute_time_s)
    }
}

/// Returns samples that carry their own sequence number.
fn batch(node: &str, first: u64, count: u64) -> TelemetryBatch {
    let sample = |sequence: u64| NodeSample {
        at_unix_ms: 1_700_000_000_000 + i64::try_from(sequence).unwrap(),
        readings: BTreeMap::from([("mark".to_owned(), sequence as f64)]),
        ..NodeSample::default()
    };
    let samples = (first..first + count).map(sample).collect();
    TelemetryBatch { node: NodeId::new(node).unwrap(), boot_id: "boot".into(), sequence: first, samples }
}

//! Clients at work: ranks of several jobs, agents of several nodes, and a worker that comes and goes.
//!
//! Each sends again whatever was not acknowledged, as real ones do, and enters what it is told into the ledger. A client ends
//! where the predictor is gone, or when it is told to.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use evenstep_protocol::{
    AllocateRequest, JobId, JobSpec, JoinAnswer, JoinRequest, NodeId, NodeSample, TelemetryAnswer,
    TelemetryBatch, WorkerId, WorkerReport,
};
use evenstep_tests::wait::until;
use evenstep_tests::{Client, Reply};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::ledger::{JOBS, Ledger, NODES};

/// Workers that stay in each job.
pub const WORKERS: usize = 4;
/// The worker that comes and goes, in the first job.
pub const GUEST: &str = "guest/0";
/// Ranks of a job that ask at once.
const ASKERS: u64 = 2;
/// Samples in a batch.
const BATCH_MAX: u64 = 40;

/// What a load is told, and tells.
#[derive(Debug, Default)]
pub struct Load {
    /// Set to end it.
    pub stop: AtomicBool,
    /// Requests that were answered as they should be.
    pub progress: AtomicU64,
    /// Answers that said "not now".
    pub refusals: AtomicU64,
}

/// Creates the jobs with the workers that stay.
pub fn begin(client: &Client, ledger: &Ledger) {
    for job in JOBS {
        // Nobody's silence counts, and whoever comes and goes need not wait.
        client.put_job(job, &JobSpec { lease_s: 3600.0, flap_cooldown_s: 0.0, ..JobSpec::new(256) });
        for worker in 0..WORKERS {
            ledger.heard(job, client.join(job, worker_id(worker).as_str()).generation);
        }
    }
    ledger.told().guest = Some(false);
}

impl Load {
    /// Runs all clients against the predictor at `url` beside `meanwhile`, and returns when all have ended.
    pub fn run<T>(&self, url: &str, ledger: &Ledger, seed: u64, meanwhile: impl FnOnce() -> T) -> T {
        self.run_on(&[url], ledger, seed, meanwhile)
    }

    /// The same against several predictors: where one is gone or says "not now" a client goes to the next.
    pub fn run_on<T>(&self, urls: &[&str], ledger: &Ledger, seed: u64, meanwhile: impl FnOnce() -> T) -> T {
        let client = |seed_of_client| Asker {
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
                for rank in 0..ASKERS {
                    scope.spawn(move || client(16 + ASKERS * number + rank).train(job));
                }
                scope.spawn(move || client(32 + number).read_along(job));
            }
            scope.spawn(move || client(64).come_and_go(JOBS[0]));
            let outcome = meanwhile();
            self.stop.store(true, Ordering::SeqCst);
            outcome
        })
    }

    /// Waits until so many more requests were answered.
    pub fn goes_on(&self, requests: u64) {
        let begun = self.progress.load(Ordering::SeqCst);
        until("requests are answered", || {
            (self.progress.load(Ordering::SeqCst) >= begun + requests).then_some(())
        });
    }
}

/// One client.
struct Asker<'a> {
    load: &'a Load,
    ledger: &'a Ledger,
    clients: Vec<Client>,
    /// The client that was answered last.
    at: Cell<usize>,
    random: ChaCha8Rng,
}

impl Asker<'_> {
    fn stopped(&self) -> bool {
        self.load.stop.load(Ordering::SeqCst)
    }

    fn client(&self) -> &Client {
        &self.clients[self.at.get() % self.clients.len()]
    }

    fn next(&self) {
        self.at.set(self.at.get() + 1);
    }

    /// Asks until there is an answer that is not "not now"; None where every predictor is gone or the load is to end.
    fn patiently(&self, ask: impl Fn(&Client) -> Result<Reply, ureq::Error>) -> Option<Reply> {
        until("the predictor answers", || {
            let Ok(reply) = ask(self.client()) else {
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

    /// An agent: its batches overlap now and then, and one that was not acknowledged is sent again.
    fn send_samples(mut self, node: &'static str) {
        let mut next = self.ledger.told().samples.entry(node).or_default().acknowledged;
        while !self.stopped() {
            let again =
                if self.random.random_bool(0.2) { self.random.random_range(0..=next.min(30)) } else { 0 };
            let first = next - again;
            let count = again + self.random.random_range(1..=BATCH_MAX);
            self.ledger.send(node, first + count);
            let batch = batch(node, first, count);
            let Some(reply) = self.patiently(|client| client.try_post("/v1/telemetry", &batch)) else {
                return;
            };
            let answer: TelemetryAnswer = reply.json();
            assert_eq!((answer.next_sequence, answer.stored + answer.duplicates), (first + count, count));
            assert!(answer.duplicates >= again, "what was acknowledged is stored: {answer:?}");
            next = first + count;
            self.ledger.told().samples.entry(node).or_default().acknowledged = next;
        }
    }

    /// A rank: asks for iteration after iteration, tells how the one before went, and reads an old answer now and then.
    fn train(mut self, job: &'static str) {
        let mut generation = self.ledger.told().generations[job];
        let mut iteration = self.ledger.told().next_iteration(job).saturating_sub(3);
        while !self.stopped() {
            let mut request = AllocateRequest::new(JobId::new(job).unwrap(), generation, iteration);
            let worker = self.random.random_range(0..WORKERS);
            let before = iteration.checked_sub(1);
            request.reports = before.iter().map(|before| report(worker, *before)).collect();
            let Some(reply) = self.patiently(|client| client.try_post("/allocate", &request)) else { return };
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
                let Some(reply) = self.patiently(|client| client.try_get(&path)) else { return };
                // Whoever begins in the middle finds iterations that nobody asked for.
                if reply.status != 404 || self.ledger.told().held(job, old).next().is_some() {
                    assert_eq!(reply.status, 200, "{reply:?}");
                    self.ledger.hold(job, old, &reply.body);
                }
            }
        }
    }

    /// A rank that asks for nothing and reads each answer as soon as there is one: before it is durable it must not be there.
    fn read_along(self, job: &'static str) {
        while !self.stopped() {
            let iteration = self.ledger.told().next_iteration(job);
            let path = format!("/allocate?job_id={job}&iteration={iteration}");
            let reply = until("there is an answer to read", || match self.client().try_get(&path) {
                Err(_) => {
                    self.next();
                    (self.clients.len() == 1 || self.stopped()).then_some(None)
                }
                Ok(reply) if reply.status == 200 => Some(Some(reply)),
                // Another client may have got it meanwhile, and goes on to the next.
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

    /// A worker that joins and leaves, some requests of the others apart.
    fn come_and_go(mut self, job: &'static str) {
        let path = format!("/v1/jobs/{job}/workers");
        while !self.stopped() {
            let wait_for = self.load.progress.load(Ordering::SeqCst) + self.random.random_range(5..40);
            while self.load.progress.load(Ordering::SeqCst) < wait_for {
                if self.stopped() {
                    return;
                }
                // Where the predictor is gone nobody makes progress any more.
                if self.client().try_get("/healthz").is_err() && self.clients.len() == 1 {
                    return;
                }
            }
            let joins = self.random.random_bool(0.5);
            self.ledger.told().guest = None;
            let request = JoinRequest::new(WorkerId::new(GUEST).unwrap());
            let guest = format!("{path}/{}", GUEST.replace('/', "%2F"));
            let ask = |client: &Client| match joins {
                true => client.try_post(&path, &request),
                false => client.try_delete(&guest),
            };
            let Some(reply) = self.patiently(ask) else { return };
            // It may want to leave before it ever came.
            if reply.status != 404 {
                let answer: JoinAnswer = reply.json();
                self.ledger.heard(job, answer.generation);
            }
            self.ledger.told().guest = Some(joins);
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

/// How an iteration went for a worker: always the same, so that it can be told what of two came first, and looked for later.
pub fn report(worker: usize, iteration: u64) -> WorkerReport {
    let compute_time_s = 0.1 + 0.01 * worker as f64 + 0.001 * (iteration % 10) as f64;
    WorkerReport {
        barrier_wait_s: Some(0.001),
        drivers: BTreeMap::from([("psi_cpu_some".to_owned(), (iteration % 10) as f64 / 10.0)]),
        ..WorkerReport::new(worker_id(worker), iteration, 64, compute_time_s)
    }
}

/// Samples that carry their own sequence number.
fn batch(node: &str, first: u64, count: u64) -> TelemetryBatch {
    let sample = |sequence: u64| NodeSample {
        at_unix_ms: 1_700_000_000_000 + i64::try_from(sequence).unwrap(),
        readings: BTreeMap::from([("mark".to_owned(), sequence as f64)]),
        ..NodeSample::default()
    };
    let samples = (first..first + count).map(sample).collect();
    TelemetryBatch { node: NodeId::new(node).unwrap(), boot_id: "boot".into(), sequence: first, samples }
}

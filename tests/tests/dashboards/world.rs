//! The data source of all dashboards: a predictor, an agent and a training run, scraped by a Prometheus with
//! the shipped configuration, except for addresses and intervals.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use evenstep_protocol::{AllocateRequest, JobId, JobSpec, WorkerId, WorkerReport};
use evenstep_tests::agent::Agent;
use evenstep_tests::prometheus::program;
use evenstep_tests::training::Training;
use evenstep_tests::{Client, Predictor, Prometheus, Store, binaries};
use tempfile::TempDir;

use crate::grafana::{Selection, View};
use crate::shipped;

/// The job of the training run.
pub const JOB: &str = "seen";
/// The node of the training run.
pub const NODE: &str = "node-0";
/// A job with many workers, one of which is slow for a long time. Its reports are made up.
pub const WIDE: &str = "wide";
/// Number of its workers: more than twice the number of lines that a panel may have.
pub const WIDE_WORKERS: usize = 40;
/// Iterations of the job before and after its first worker becomes slow.
const WIDE_ITERATIONS: (u64, u64) = (30, 70);
/// A job with requests, but without training.
const ASKING: &str = "asking";
const WORKERS: usize = 3;
const SCRAPE_INTERVAL_S: f64 = 1.0;

/// The running processes.
#[derive(Debug)]
pub struct World {
    /// The training run, which ends first.
    pub training: Training,
    /// The Prometheus that scrapes the others.
    pub prometheus: Prometheus,
    /// The agent of this machine.
    pub agent: Agent,
    /// The predictor.
    pub predictor: Predictor,
    _store: Store,
    begun_s: f64,
    asking: AllocateRequest,
    /// Next iteration of the job with many workers, and its generation.
    wide: Cell<u64>,
    wide_generation: u64,
    _folder: TempDir,
}

/// Returns the time in seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the time range of the dashboards ends now")]
pub fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64()
}

impl World {
    /// Starts all processes. Returns `None` and reports the test as skipped if a program is missing.
    pub fn start(test: &str) -> Option<Self> {
        let prometheus = program("prometheus", test)?;
        let trainer = binaries::find("evenstep-trainer", test)?;
        let predictor = binaries::find("evenstep-predictor", test)?;
        let agent = binaries::find("evenstep-agent", test)?;
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::sqlite();
        let begun_s = now_s();
        let predictor = Predictor::start_over(&predictor, &store.address(), &["--refit-interval-s=1"]);
        let agent = Agent::start(&agent, NODE, &predictor.url, &folder.path().join("spool"));
        let client = predictor.client();
        let asking = {
            client.put_job(ASKING, &JobSpec { lease_s: 3600.0, ..JobSpec::new(8) });
            let joined = client.join(ASKING, "asker");
            AllocateRequest::new(JobId::new(ASKING).expect("an id"), joined.generation, 0)
        };
        let wide_generation = {
            client.put_job(WIDE, &JobSpec { lease_s: 3600.0, ..JobSpec::new(64 * WIDE_WORKERS as u64) });
            (0..WIDE_WORKERS).fold(0, |_, rank| client.join(WIDE, &wide_worker(rank)).generation)
        };
        // Steps of about 30 ms, and more of them than any test needs.
        let arguments = [
            format!("--workers={WORKERS}"),
            "--pace=1,2,4".to_owned(),
            "--pace-unit-ms=4".to_owned(),
            "--global-batch=56".to_owned(),
            "--policy=evenstep".to_owned(),
            "--steps=1000000".to_owned(),
            format!("--job={JOB}"),
            format!("--server={}", predictor.url),
        ];
        let training = Training::start(&trainer, folder.path(), &arguments.each_ref().map(String::as_str));
        let addresses = [predictor.url.as_str(), agent.client.url()];
        let prometheus = Prometheus::start(&prometheus, &configuration(addresses.map(host)));
        Some(Self {
            training,
            prometheus,
            agent,
            predictor,
            begun_s,
            asking,
            wide: Cell::new(0),
            wide_generation,
            _store: store,
            _folder: folder,
        })
    }

    /// Runs an iteration of the job with many workers. Each takes about a second by its reports.
    pub fn wide_iteration(&self) {
        let iteration = self.wide.get();
        let mut request =
            AllocateRequest::new(JobId::new(WIDE).expect("an id"), self.wide_generation, iteration);
        if let Some(before) = iteration.checked_sub(1) {
            let slow = before >= WIDE_ITERATIONS.0;
            let report = |rank: usize| {
                let compute_s =
                    if rank == 0 && slow { 2.5 } else { 1.0 + 0.001 * ((rank as u64 + before) % 7) as f64 };
                WorkerReport {
                    barrier_wait_s: Some(2.6 - compute_s),
                    ..WorkerReport::new(
                        WorkerId::new(wide_worker(rank)).expect("an id"),
                        before,
                        64,
                        compute_s,
                    )
                }
            };
            request.reports = (0..WIDE_WORKERS).map(report).collect();
        }
        assert_eq!(self.predictor.client().allocate(&request).status, 200);
        self.wide.set(iteration + 1);
    }

    /// Runs the job with many workers until one of them is slow for a long time.
    pub fn wide_until_slow(&self) {
        (0..WIDE_ITERATIONS.0 + WIDE_ITERATIONS.1).for_each(|_| self.wide_iteration());
    }

    /// Returns the view of a dashboard of the job with many workers.
    pub fn wide_view(&self) -> View {
        let mut view = self.view(true);
        view.selections.insert("job_id".to_owned(), Selection::One(WIDE.to_owned()));
        view.selections.insert("worker".to_owned(), Selection::All);
        view.selections.insert("focus".to_owned(), Selection::One(wide_worker(0)));
        view
    }

    /// Sends requests during the run: a repeated request, a request for an unknown job, invalid telemetry,
    /// and a query of the processes of the training run.
    pub fn goes_on(&self) {
        self.wide_iteration();
        let client = self.predictor.client();
        assert_eq!(client.allocate(&self.asking).status, 200);
        assert_eq!(client.allocate(&self.asking).status, 200);
        assert_eq!(client.get("/v1/jobs/nobodys").status, 404);
        assert_eq!(client.post_text("/v1/telemetry", "{}").status, 422);
        for pid in self.training.workers() {
            self.agent.client.get(&format!("/sample?pid={pid}"));
        }
    }

    /// Returns the view of a dashboard: the whole time range, and either all workers or two of them.
    pub fn view(&self, all_workers: bool) -> View {
        let workers = self.workers();
        let one = |value: &str| Selection::One(value.to_owned());
        let focus = one(&workers[0]);
        let workers = if all_workers { Selection::All } else { Selection::Some(workers[..2].to_vec()) };
        View {
            selections: BTreeMap::from([
                ("job_id".to_owned(), one(JOB)),
                ("worker".to_owned(), workers),
                ("focus".to_owned(), focus),
                ("unit".to_owned(), one("samples")),
                ("node".to_owned(), one(NODE)),
                ("instance".to_owned(), Selection::All),
            ]),
            range_s: (self.begun_s, now_s()),
            scrape_interval_s: SCRAPE_INTERVAL_S,
        }
    }

    /// Returns the workers of the job.
    pub fn workers(&self) -> Vec<String> {
        workers(&self.predictor.client())
    }
}

fn wide_worker(rank: usize) -> String {
    format!("node-{}/{}", rank / 8, rank % 8)
}

/// Returns the workers of the job as reported by the service; empty before the job exists.
fn workers(client: &Client) -> Vec<String> {
    let reply = client.get(&format!("/v1/jobs/{JOB}/workers"));
    if reply.status == 404 {
        return Vec::new();
    }
    let view: evenstep_protocol::WorkersView = reply.json();
    view.workers.iter().map(|worker| worker.worker.as_str().to_owned()).collect()
}

/// Returns the shipped configuration with the addresses of this test and short intervals.
fn configuration(addresses: [String; 2]) -> String {
    let mut config = shipped::text("prometheus/prometheus.yaml");
    let rules = shipped::path("prometheus/rules").canonicalize().expect("the rules");
    let replacements = [
        ("scrape_interval: 5s".to_owned(), format!("scrape_interval: {SCRAPE_INTERVAL_S}s")),
        ("evaluation_interval: 15s".to_owned(), format!("evaluation_interval: {SCRAPE_INTERVAL_S}s")),
        ("rules/*.yaml".to_owned(), format!("{}/*.yaml", rules.display())),
    ];
    let shipped = ["predictor:7117", "host.docker.internal:7119"];
    let addresses = shipped.iter().map(|&shipped| shipped.to_owned()).zip(addresses);
    for (from, to) in replacements.into_iter().chain(addresses) {
        assert!(config.contains(&from), "prometheus.yaml has no {from}");
        config = config.replace(&from, &to);
    }
    config
}

fn host(url: &str) -> String {
    url.trim_start_matches("http://").to_owned()
}

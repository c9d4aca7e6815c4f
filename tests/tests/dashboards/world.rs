//! The data source of all dashboards: a predictor, an agent and a training run, scraped by a Prometheus with
//! the shipped configuration, except for addresses and intervals.

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
/// A job with requests, but without training.
const ASKING: &str = "asking";
const WORKERS: usize = 3;
const SCRAPE_INTERVAL_S: f64 = 1.0;

/// The running processes.
#[derive(Debug)]
pub struct World {
    /// The training run, which ends first.
    pub training: Training,
    /// The Prometheus that scrapes the others, if the test needs one.
    pub prometheus: Option<Prometheus>,
    /// The agent of this machine.
    pub agent: Agent,
    /// Client of the launcher's metrics page.
    pub launcher: Client,
    /// The predictor.
    pub predictor: Predictor,
    _store: Store,
    begun_s: f64,
    asking: AllocateRequest,
    _folder: TempDir,
}

/// Returns the time in seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the time range of the dashboards ends now")]
pub fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64()
}

impl World {
    /// Starts all processes with a store, with or without a Prometheus. Returns `None` and reports the test
    /// as skipped if a program is missing.
    pub fn start(test: &str, store: Store, scraped: bool) -> Option<Self> {
        let prometheus = if scraped { Some(program("prometheus", test)?) } else { None };
        let trainer = binaries::find("evenstep-trainer", test)?;
        let predictor = binaries::find("evenstep-predictor", test)?;
        let agent = binaries::find("evenstep-agent", test)?;
        let folder = tempfile::tempdir().expect("a folder");
        let begun_s = now_s();
        let predictor = Predictor::start_over(&predictor, &store.address(), &["--refit-interval-s=1"]);
        let agent = Agent::start(&agent, NODE, &predictor.url, &folder.path().join("spool"));
        let client = predictor.client();
        let asking = {
            client.put_job(ASKING, &JobSpec { lease_s: 3600.0, ..JobSpec::new(8) });
            let joined = client.join(ASKING, "asker");
            AllocateRequest::new(JobId::new(ASKING).expect("an id"), joined.generation, 0)
        };
        // Steps of about 30 ms, and more of them than any test needs.
        let arguments = [
            format!("--workers={WORKERS}"),
            "--pace=1,2,4".to_owned(),
            "--pace-unit-ms=4".to_owned(),
            "--global-batch=56".to_owned(),
            "--policy=evenstep".to_owned(),
            "--steps=1000000".to_owned(),
            "--metrics-listen=127.0.0.1:0".to_owned(),
            format!("--job={JOB}"),
            format!("--server={}", predictor.url),
        ];
        let training = Training::start(&trainer, folder.path(), &arguments.each_ref().map(String::as_str));
        let launcher = training.process.line("the address of its metrics", |line| {
            let (_, rest) = line.split_once("metrics: ")?;
            Some(rest.strip_suffix("/metrics")?.to_owned())
        });
        let prometheus = prometheus.map(|binary| {
            let addresses = [predictor.url.as_str(), agent.client.url(), &launcher];
            Prometheus::start(&binary, &configuration(addresses.map(host)))
        });
        let launcher = Client::new(&launcher);
        Some(Self {
            training,
            prometheus,
            agent,
            launcher,
            predictor,
            begun_s,
            asking,
            _store: store,
            _folder: folder,
        })
    }

    /// Sends requests during the run: a repeated request, a request for an unknown job, invalid telemetry,
    /// and a query of the processes of the training run.
    pub fn goes_on(&self) {
        let client = self.predictor.client();
        assert_eq!(client.allocate(&self.asking).status, 200);
        assert_eq!(client.allocate(&self.asking).status, 200);
        assert_eq!(client.get("/v1/jobs/nobodys").status, 404);
        assert_eq!(client.post_text("/v1/telemetry", "{}").status, 422);
        for pid in self.training.workers() {
            self.agent.client.get(&format!("/sample?pid={pid}"));
        }
    }

    /// Requests iterations 0 and 2 of a job, the latter with a report of iteration 1. Returns the job.
    pub fn asks_out_of_turn(&self) -> &'static str {
        let client = self.predictor.client();
        assert_eq!(client.allocate(&self.asking).status, 200);
        let report = WorkerReport::new(WorkerId::new("asker").expect("an id"), 1, 8, 0.1);
        let request = AllocateRequest { iteration: 2, reports: vec![report], ..self.asking.clone() };
        assert_eq!(client.allocate(&request).status, 200);
        ASKING
    }

    /// Returns the view of a dashboard: the whole time range, and either all workers or two of them.
    pub fn view(&self, all_workers: bool) -> View {
        let workers = self.workers();
        let one = |value: &str| Selection::One(value.to_owned());
        let all = |values: Vec<String>| Selection::All(values, Some(".+".to_owned()));
        let workers = if all_workers { all(workers) } else { Selection::Some(workers[..2].to_vec()) };
        View {
            selections: BTreeMap::from([
                ("job_id".to_owned(), one(JOB)),
                ("worker".to_owned(), workers),
                ("node".to_owned(), one(NODE)),
                ("instance".to_owned(), all(vec![host(&self.predictor.url)])),
                ("driver".to_owned(), one("own_cpu")),
                ("kind".to_owned(), Selection::Some(vec!["cold_start".to_owned(), "rebalanced".to_owned()])),
                ("iteration".to_owned(), one("")),
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
fn configuration(addresses: [String; 3]) -> String {
    let mut config = shipped::text("prometheus/prometheus.yaml");
    let rules = shipped::path("prometheus/rules").canonicalize().expect("the rules");
    let replacements = [
        ("scrape_interval: 5s".to_owned(), format!("scrape_interval: {SCRAPE_INTERVAL_S}s")),
        ("evaluation_interval: 15s".to_owned(), format!("evaluation_interval: {SCRAPE_INTERVAL_S}s")),
        ("rules/*.yaml".to_owned(), format!("{}/*.yaml", rules.display())),
    ];
    let shipped = ["predictor:7117", "host.docker.internal:7119", "host.docker.internal:7120"];
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

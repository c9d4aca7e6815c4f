//! Fuzz test of all request bodies, with the real router and a real store. Whatever a client sends:
//!
//! - No request panics, and no response has an unexpected status.
//! - An error is problem+json of a known type, and changes nothing.
//! - The job can be read again after a restart, with the same responses.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use evenstep_fuzz::{arbitrary, config, damaged, damaged_json};
use evenstep_protocol::{
    AllocateResponse, ForecastView, JobView, NodesView, PROBLEM_CONTENT_TYPE, Problem, WorkersView,
};
use evenstep_store::{Address, Store};
use http_body_util::BodyExt;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tower::ServiceExt;

use super::{Api, Meter, Pools, Streams, router};
use crate::access::{Access, Auth, Hosts, Refresher};
use crate::clock::Clock;
use crate::jobs::Jobs;
use crate::retention::{Keep, RetentionStats};

const JOB: &str = "/v1/jobs/job";
const WORKERS: &str = "/v1/jobs/job/workers";

/// Types of problems that a body can cause, with their statuses.
const PROBLEMS: [(&str, u16); 12] = [
    ("malformed", 400),
    ("not-answered", 404),
    ("unknown-job", 404),
    ("unknown-worker", 404),
    ("conflict", 409),
    ("stale-generation", 409),
    ("gone", 410),
    ("infeasible", 422),
    ("invalid", 422),
    ("busy", 429),
    ("cooling-down", 503),
    ("paused", 503),
];
/// Size limit of an error response, in bytes: it must not repeat a long body.
const PROBLEM_BYTES_MAX: usize = 8192;

/// Requests with a body, and valid bodies for them.
const REQUESTS: [(Method, &str, &[&str]); 7] = [
    (
        Method::PUT,
        JOB,
        &[
            r#"{"global_batch":64}"#,
            r#"{"global_batch":64,"per_worker_batch":32,"quantum":4,"min_local_batch":4,"max_local_batch":64,"accumulation":true,"profile":true,"overlap_begins":0.4,"memory_headroom":0.1,"hedge":"auto","min_chunk":4,"background":{"slow_down_limit":1.2},"min_workers":2,"lease_s":5.0,"min_gain":0.01,"max_batch_growth":2.0,"flap_cooldown_s":60.0,"keep_s":100,"initial_speeds":{"node/0":10.0}}"#,
            r#"{"global_batch":96,"allowed_sizes":[0,16,32,64],"rule":"legw","learning_rate":{"warmup_epochs":2.5,"dataset_samples":1000}}"#,
            r#"{"global_batch":96,"distinct_sizes":2,"rule":"dynamic_sgd","learning_rate":{"ramp_iterations":5},"hedge":"off"}"#,
        ],
    ),
    (
        Method::POST,
        WORKERS,
        &[
            r#"{"worker":"node/0","device":"cpu","min_local_batch":1,"max_local_batch":60,"memory_bytes":1000000,"claims":true}"#,
            r#"{"worker":"node/2"}"#,
        ],
    ),
    (
        Method::PUT,
        "/v1/jobs/job/workers/node%2F0/override",
        &[r#"{"paused":true}"#, r#"{"pinned_local_batch":16,"min_local_batch":2,"max_local_batch":40}"#],
    ),
    (Method::POST, "/v1/jobs/job/workers/node%2F1/oom", &[r#"{"iteration":1,"local_batch":32}"#]),
    (
        Method::POST,
        "/allocate",
        &[
            r#"{"job_id":"job","generation":2,"iteration":2}"#,
            r#"{"job_id":"job","generation":2,"iteration":3,"global_batch":20,"reports":[{"worker":"node/0","iteration":1,"local_batch":32,"compute_time_s":0.25,"micro_batches":4,"tail":{"chunks":2,"samples":8,"compute_time_s":0.05,"claim_time_s":0.001},"barrier_wait_s":0.01,"loader_wait_s":0.0,"peak_memory_bytes":1000000,"loss":2.5,"gradient_sqr":1.5,"global_gradient_sqr":0.5,"drivers":{"psi_cpu_some":0.2,"other_cpu":1.5}},{"worker":"node/1","iteration":2,"local_batch":32,"compute_time_s":0.5,"cost":40.5}]}"#,
            r#"{"job_id":"job","generation":2,"iteration":2,"global_batch":8}"#,
        ],
    ),
    (
        Method::POST,
        "/v1/telemetry",
        &[
            r#"{"node":"node","boot_id":"b","sequence":0,"samples":[{"at_unix_ms":1000,"window_s":1.0,"readings":{"cpu_busy":0.5},"missing":{"psi":"no file"},"processes":[{"pid":7,"readings":{"own_cpu":1.0}}],"gpus":[{"index":0,"uuid":"u","name":"g","readings":{"sm_clock_mhz":1000.0},"throttle_reasons":["thermal"],"processes":[{"pid":7}]}]},{"at_unix_ms":2000}]}"#,
        ],
    ),
    (
        Method::POST,
        "/v1/plan/burst",
        &[
            r#"{"global_batch":8,"gpus":4,"amplification":2.0,"exempt_below_us":10.0,"memory_bytes":100000000,"bytes_per_parameter":16.0,"network":{"bandwidth_bytes_per_s":1e9,"latency_us":5.0,"all_reduce":"tree"},"profile":{"model":"m","layers":[{"name":"a","compute_us":{"1":20.0,"8":90.0},"parameters":1000,"outputs":10,"activation_bytes":{"1":4}},{"name":"b","inputs":["a"],"compute_us":{"1":200.0,"8":900.0},"parameters":10}]}}"#,
            r#"{"global_batch":8,"counts":[1,2],"speeds":[1.0,0.5],"profile":{"layers":[{"name":"a","cost_us":{"1":20.0,"2":12.0}},{"name":"b","cost_us":{"1":20.0,"2":12.0},"edge_us":{"1->2":3.0}}]}}"#,
            r#"{"global_batch":8,"job_id":"job","profile":{"layers":[{"name":"a","compute_us":{"1":20.0}}]}}"#,
        ],
    ),
];

/// A request of the fuzz test: an index of [`REQUESTS`], and a body.
#[derive(Clone)]
struct Attempt {
    at: usize,
    body: Vec<u8>,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (method, path, _) = &REQUESTS[self.at];
        write!(f, "{method} {path} {}", self.body.escape_ascii())
    }
}

fn attempt() -> impl Strategy<Value = Attempt> {
    (0..REQUESTS.len()).prop_flat_map(|at| {
        let texts: Vec<String> = REQUESTS[at].2.iter().map(|body| (*body).to_owned()).collect();
        let bytes = texts.iter().map(|body| body.clone().into_bytes()).collect();
        let body = prop_oneof![
            1 => arbitrary(),
            2 => damaged(bytes),
            9 => damaged_json(texts).prop_map(String::into_bytes),
        ];
        body.prop_map(move |body| Attempt { at, body })
    })
}

/// The router with its store in a temporary folder.
struct Service {
    runtime: Runtime,
    store: Store,
    router: Router,
    _folder: TempDir,
}

impl Service {
    fn start() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let address: Address = format!("sqlite://{}/evenstep.db", folder.path().display()).parse().unwrap();
        let (store, _writer) = runtime.block_on(Store::open(&address, None)).unwrap();
        Self { runtime, router: serve(&store), store, _folder: folder }
    }

    /// Forgets the states in memory.
    fn restart(&mut self) {
        self.router = serve(&self.store);
    }

    fn send(&self, method: &Method, path: &str, body: impl Into<Body>) -> Reply {
        let request =
            Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
        let request = request.body(body.into()).unwrap();
        self.runtime.block_on(async {
            let response = self.router.clone().oneshot(request).await.unwrap();
            let content_type = response.headers().get(header::CONTENT_TYPE).cloned();
            let content_type =
                content_type.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
            let status = response.status();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            Reply { status, content_type, body: String::from_utf8(body.to_vec()).unwrap() }
        })
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> T {
        self.send(&Method::GET, path, Body::empty()).json()
    }

    fn put_job(&self) {
        assert_eq!(
            self.send(&Method::PUT, JOB, r#"{"global_batch":64,"rule":"adascale"}"#).status,
            StatusCode::CREATED
        );
        for worker in ["node/0", "node/1"] {
            let joined =
                self.send(&Method::POST, WORKERS, format!(r#"{{"worker":"{worker}","claims":true}}"#));
            assert_eq!(joined.status, StatusCode::OK);
        }
        self.allocate(0).json::<AllocateResponse>();
        self.allocate(1).json::<AllocateResponse>();
    }

    /// Requests an iteration in the current generation, with the reports of the one before it.
    fn allocate(&self, iteration: u64) -> Reply {
        let generation = self.get::<JobView>(JOB).generation;
        let reports = iteration.checked_sub(1).map_or(String::new(), |before| {
            let report = |worker: usize| {
                format!(r#"{{"worker":"node/{worker}","iteration":{before},"local_batch":32,"compute_time_s":0.5}}"#)
            };
            [0, 1].map(report).join(",")
        });
        let body = format!(
            r#"{{"job_id":"job","generation":{generation},"iteration":{iteration},"reports":[{reports}]}}"#
        );
        self.send(&Method::POST, "/allocate", body)
    }

    /// Everything that a request with a body can change.
    fn state(&self) -> (JobView, WorkersView, ForecastView, NodesView) {
        (self.get(JOB), self.get(WORKERS), self.get("/v1/jobs/job/forecast"), self.get("/v1/nodes"))
    }

    fn check(&self, attempt: &Attempt) -> Result<(), TestCaseError> {
        let (method, path, _) = &REQUESTS[attempt.at];
        let before = self.state();
        let reply = self.send(method, path, attempt.body.clone());
        let is_planned = *path == "/allocate" && reply.status == StatusCode::OK;
        if is_planned {
            reply.json::<AllocateResponse>();
        }
        if reply.status.is_success() {
            self.state();
            return Ok(());
        }
        let slug = reply.problem()?;
        // The reports of an iteration that cannot be planned are stored.
        if !(*path == "/allocate" && ["infeasible", "invalid"].contains(&slug.as_str()))
            || before.0.next_iteration == 0
        {
            prop_assert_eq!(self.state(), before, "after {:?}", reply);
        } else {
            prop_assert_eq!((self.state().0, self.state().3), (before.0, before.3), "after {:?}", reply);
        }
        Ok(())
    }

    /// Requests two more iterations, and reads the job again after a restart.
    fn check_continues(&mut self) -> Result<(), TestCaseError> {
        let next = self.get::<JobView>(JOB).next_iteration;
        let planned: Vec<Reply> =
            [next, next.saturating_add(1)].map(|iteration| self.allocate(iteration)).into();
        for reply in &planned {
            if reply.status == StatusCode::OK {
                reply.json::<AllocateResponse>();
            } else {
                reply.problem()?;
            }
        }
        let (job, workers, ..) = self.state();
        self.restart();
        let (restarted, restarted_workers, ..) = self.state();
        prop_assert_eq!(restarted, job);
        prop_assert_eq!(restarted_workers.workers.len(), workers.workers.len());
        let repeated =
            self.send(&Method::GET, &format!("/allocate?job_id=job&iteration={next}"), Body::empty());
        if planned[0].status == StatusCode::OK {
            prop_assert_eq!(&repeated.body, &planned[0].body);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Reply {
    status: StatusCode,
    content_type: String,
    body: String,
}

impl Reply {
    fn json<T: DeserializeOwned>(&self) -> T {
        assert!(self.status.is_success(), "{self:?}");
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The type of a problem.
    fn problem(&self) -> Result<String, TestCaseError> {
        prop_assert_eq!(self.content_type.as_str(), PROBLEM_CONTENT_TYPE, "{:?}", self);
        prop_assert!(self.body.len() <= PROBLEM_BYTES_MAX, "{} bytes: {:?}", self.body.len(), self);
        let problem: Problem = serde_json::from_str(&self.body)
            .map_err(|error| TestCaseError::fail(format!("{error}: {self:?}")))?;
        prop_assert!(PROBLEMS.contains(&(problem.slug(), self.status.as_u16())), "{:?}", self);
        Ok(problem.slug().to_owned())
    }
}

fn serve(store: &Store) -> Router {
    let (clock, _) = Clock::manual(1_000_000);
    let keep = Keep { raw_s: 1000, minutes_s: 1000, hours_s: 1000, bytes: None };
    let (_, draining) = watch::channel(false);
    let access = Arc::new(Access::new(Auth::None, None, clock.clone()));
    router(Api {
        jobs: Arc::new(Jobs::new(store.clone(), clock, 1 << 30)),
        retention: RetentionStats::new(&keep),
        streams: Streams::new(access.clone(), draining.clone()),
        draining,
        meter: Meter::new(Auth::None),
        gather: Arc::new(Vec::new),
        refresher: Arc::new(Refresher::new(access.clone(), store.clone())),
        access,
        limits: Arc::default(),
        hosts: Arc::new(Hosts::new(&[], None, false)),
        is_secure: false,
        pools: Pools::new(Auth::None),
        reports: None,
    })
}

#[test]
fn no_body_panics_and_no_error_changes_anything() {
    let service = RefCell::new(Service::start());
    let mut runner = TestRunner::new(config(32));
    let outcome = runner.run(&prop::collection::vec(attempt(), 1..8), |attempts| {
        let mut service = service.borrow_mut();
        service.put_job();
        let outcome = attempts.iter().try_for_each(|attempt| service.check(attempt));
        let outcome = outcome.and_then(|()| service.check_continues());
        let deleted = service.send(&Method::DELETE, JOB, Body::empty());
        prop_assert_eq!(deleted.status, StatusCode::NO_CONTENT);
        outcome
    });
    outcome.unwrap();
}

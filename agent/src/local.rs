//! Local HTTP API of the agent: readings on request, status, metrics and health.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use evenstep_observability::{Gather, serve};
use evenstep_protocol::{NodeSample, PROBLEM_CONTENT_TYPE, Problem, Readings};
use serde::{Deserialize, Serialize};

use crate::clock::unix_ms;
use crate::sampler::{MissingCount, MissingCounts};
use crate::source::host::Host;
use crate::spool::{SampleIdentity, Spool, SpoolState};
use crate::uplink::UplinkState;
use crate::watch::WatchList;
use crate::{Boundary, Reading};

/// Maximum number of readers, as each client process has its own windows. The least recently used reader is
/// dropped.
const READERS_MAX: usize = 64;

/// Maximum delay of a sample; a longer delay means that sampling has stopped.
const SAMPLE_DELAY_MAX: Duration = Duration::from_secs(10);

/// State shared by the threads of an agent.
pub struct Shared {
    /// Identity of this run's samples.
    pub identity: SampleIdentity,
    /// Number of cores of the machine, and the name of their model.
    pub cores: (Option<usize>, Option<String>),
    /// Whether readings are synthetic.
    pub synthetic: bool,
    /// Time between samples.
    pub interval: Duration,
    /// Start time of the agent.
    pub started: Instant,
    /// The spool.
    pub spool: Arc<Mutex<Spool>>,
    /// State of the uplink.
    pub uplink: Arc<Mutex<UplinkState>>,
    /// The list of sampled processes.
    pub watch: Mutex<WatchList>,
    /// State of the sampler.
    pub sampling: Mutex<SamplingState>,
}

impl Shared {
    /// Checks that samples are taken. The sampler hangs if a call into a driver hangs.
    ///
    /// # Errors
    /// A message with the time since the last sample.
    pub fn healthy(&self) -> Result<(), String> {
        let silent = lock(&self.sampling).last.unwrap_or(self.started).elapsed();
        if silent <= self.interval + SAMPLE_DELAY_MAX {
            return Ok(());
        }
        Err(format!("no sample taken for {} s; check the agent's log and the GPU driver", silent.as_secs()))
    }
}

/// State of the sampler.
#[derive(Debug, Clone, Default)]
pub struct SamplingState {
    /// Number of samples taken since the start.
    pub taken: u64,
    /// Time of the last sample.
    pub last: Option<Instant>,
    /// Number of samples skipped because the previous one was still being taken.
    pub skipped: u64,
    /// Counts of missing readings.
    pub missing: MissingCounts,
    /// The last sample.
    pub latest: Option<Arc<NodeSample>>,
}

/// Locks a mutex, ignoring poisoning: a panic in one thread must not disable the API.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Response of `GET /sample`.
#[derive(Debug, Serialize, Deserialize)]
pub struct SampleResponse {
    /// Time of the reading, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// The requested process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Time since the last request for this process, in seconds: the window of shares and rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_s: Option<f64>,
    /// Readings by driver name.
    pub readings: Readings,
    /// Reasons of missing readings, by name.
    #[serde(default)]
    pub missing: std::collections::BTreeMap<String, String>,
}

/// Response of `GET /status`.
#[derive(Debug, Serialize)]
pub struct Status {
    node: String,
    boot_id: String,
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cores: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_name: Option<String>,
    synthetic: bool,
    samples_taken: u64,
    samples_skipped: u64,
    watched_pids: Vec<u32>,
    missing: Vec<MissingCount>,
    spool: SpoolState,
    uplink: UplinkState,
}

#[derive(Clone)]
struct Local {
    shared: Arc<Shared>,
    readers: Arc<Mutex<Readers>>,
    gather: Gather,
}

/// Returns the router of the local HTTP API; `gather` provides the metrics of `/metrics`.
pub fn router(shared: Arc<Shared>, gather: Gather) -> Router {
    let readers = Arc::new(Mutex::new(Readers::default()));
    Router::new()
        .route("/sample", get(sample))
        .route("/status", get(status))
        .route("/metrics", get(async |State(local): State<Local>| serve::answer(&local.gather)))
        .route("/healthz", get(health))
        .fallback(async || {
            problem(
                StatusCode::NOT_FOUND,
                "unknown-path",
                "unknown path; use /sample, /status, /metrics or /healthz",
            )
        })
        .method_not_allowed_fallback(async || {
            problem(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "only GET is allowed")
        })
        .with_state(Local { shared, readers, gather })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SampleQuery {
    pid: Option<u32>,
    gpu: Option<u32>,
}

async fn sample(State(local): State<Local>, query: Result<Query<SampleQuery>, QueryRejection>) -> Response {
    let Query(query) = match query {
        Ok(query) => query,
        Err(rejection) => return problem(StatusCode::BAD_REQUEST, "malformed", &rejection.body_text()),
    };
    let (reading, ended) = match (query.pid, query.gpu) {
        (None, None) => (lock(&local.readers).read_host(Instant::now()), false),
        (None, Some(gpu)) => {
            let detail = format!("gpu={gpu} requires pid=: add the process that uses the GPU");
            return problem(StatusCode::BAD_REQUEST, "malformed", &detail);
        }
        (Some(pid), gpu) => lock(&local.readers).read(pid, gpu, Instant::now()),
    };
    if let Some(pid) = query.pid {
        if ended {
            return problem(
                StatusCode::NOT_FOUND,
                "unknown-process",
                &format!("process {pid} does not exist"),
            );
        }
        let mut watch = lock(&local.shared.watch);
        if !watch.contains(pid) {
            watch.watch(pid);
        }
    }
    let Reading { window_s, readings, missing } = reading;
    Json(SampleResponse { at_unix_ms: unix_ms(), pid: query.pid, window_s, readings, missing })
        .into_response()
}

async fn health(State(local): State<Local>) -> Response {
    match local.shared.healthy() {
        Ok(()) => "ok\n".into_response(),
        Err(why) => problem(StatusCode::SERVICE_UNAVAILABLE, "not-sampling", &why),
    }
}

async fn status(State(local): State<Local>) -> Json<Status> {
    let shared = &local.shared;
    let sampling = lock(&shared.sampling).clone();
    let (cores, cpu_name) = shared.cores.clone();
    Json(Status {
        node: shared.identity.node.to_string(),
        boot_id: shared.identity.boot_id.clone(),
        version: env!("CARGO_PKG_VERSION"),
        cores,
        cpu_name,
        synthetic: shared.synthetic,
        samples_taken: sampling.taken,
        samples_skipped: sampling.skipped,
        watched_pids: lock(&shared.watch).pids().collect(),
        missing: sampling.missing.list(),
        spool: lock(&shared.spool).state(),
        uplink: lock(&shared.uplink).clone(),
    })
}

fn problem(status: StatusCode, slug: &str, detail: &str) -> Response {
    let problem = Problem {
        kind: format!("{}{slug}", Problem::TYPE_PREFIX),
        title: status.canonical_reason().unwrap_or("error").to_owned(),
        status: status.as_u16(),
        detail: detail.to_owned(),
        current_generation: None,
        global_batch: None,
        sum_of_floors: None,
        sum_of_caps: None,
        retry_after_s: None,
    };
    (status, [(header::CONTENT_TYPE, PROBLEM_CONTENT_TYPE)], Json(problem)).into_response()
}

/// Readers by (process, GPU). Each has its own window, so that clients do not shorten each other's windows.
#[derive(Default)]
struct Readers {
    host: Host,
    /// Least recently used first.
    boundaries: Vec<((u32, Option<u32>), Boundary)>,
}

impl Readers {
    fn read_host(&mut self, now: Instant) -> Reading {
        self.host.read(now)
    }

    /// Returns the reading, and whether the process does not exist.
    fn read(&mut self, pid: u32, gpu: Option<u32>, now: Instant) -> (Reading, bool) {
        let key = (pid, gpu);
        let known = self.boundaries.iter().position(|(reader, _)| *reader == key);
        let mut boundary =
            known.map_or_else(|| Boundary::new(pid, gpu), |index| self.boundaries.remove(index).1);
        let mut reading = boundary.read(now);
        if known.is_some() && boundary.has_ended() {
            // The known process has ended; a new process may have its id.
            boundary = Boundary::new(pid, gpu);
            reading = boundary.read(now);
        }
        if boundary.has_ended() {
            return (reading, true);
        }
        if self.boundaries.len() >= READERS_MAX {
            self.boundaries.remove(0);
        }
        self.boundaries.push((key, boundary));
        (reading, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_are_kept_between_calls_and_bounded() {
        let mut readers = Readers::default();
        let own = std::process::id();
        assert_eq!(readers.read(own, None, Instant::now()).0.window_s, None);
        assert!(readers.read(own, None, Instant::now()).0.window_s.is_some());
        for gpu in 0..READERS_MAX as u32 {
            readers.read(own, Some(gpu), Instant::now());
        }
        assert_eq!(readers.boundaries.len(), READERS_MAX);
        assert_eq!(readers.read(own, None, Instant::now()).0.window_s, None);
    }

    #[test]
    fn a_missing_process_leaves_no_reader() {
        let mut readers = Readers::default();
        assert!(readers.read(u32::MAX - 1, None, Instant::now()).1);
        assert!(readers.boundaries.is_empty());
    }
}

//! Local HTTP API of the agent: readings on request, status, metrics and health.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::uri::Authority;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use evenstep_observability::{Gather, serve};
use evenstep_protocol::{GpuSample, NodeSample, PROBLEM_CONTENT_TYPE, Problem, Readings};
use evenstep_sensors::{GpuId, Reading};
use evenstep_server::{ClientProcess, ClientUser};
use serde::{Deserialize, Serialize};

use crate::clock::unix_ms;
use crate::sampler::{MissingCount, MissingCounts};
use crate::source::thread::SourceState;
use crate::sources::{RequestedReading, Sources};
use crate::spool::{SampleIdentity, SpoolState};
use crate::uplink::UplinkState;
use crate::watch::WatchList;

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
    /// Whether each user of the machine may read the processes of all users.
    pub any_user: bool,
    /// Start time of the agent.
    pub started: Instant,
    /// The sources of readings.
    pub sources: Arc<Sources>,
    /// State of the spool after its last operation. The local HTTP API never waits for the spool itself, because
    /// its disk may hang.
    pub spool: Arc<Mutex<SpoolState>>,
    /// State of the uplink.
    pub uplink: Arc<Mutex<UplinkState>>,
    /// The list of sampled processes.
    pub watch: Mutex<WatchList>,
    /// State of the sampler.
    pub sampling: Mutex<SamplingState>,
}

impl Shared {
    /// Checks that samples are taken and that every source responds, except GPUs.
    ///
    /// # Errors
    /// A message with the time since the last sample, or since the last reading of each silent source.
    pub fn healthy(&self) -> Result<(), String> {
        let longest = self.interval + SAMPLE_DELAY_MAX;
        let silent = lock(&self.sampling).last.unwrap_or(self.started).elapsed();
        if silent > longest {
            return Err(format!("no sample taken for {} s; check the agent's log", silent.as_secs()));
        }
        // Without samples of the machine, only requests read the sources.
        let is_silent = |state: &SourceState| {
            // A new start of the agent would not mend a GPU, and would interrupt the readings of the others.
            let is_gpu = state.source.starts_with("gpu");
            state.age_s > longest.as_secs_f64() && !self.synthetic && !is_gpu
        };
        let silent = self.sources.states().into_iter().filter(is_silent);
        let silent: Vec<String> =
            silent.map(|state| format!("no reading of {} for {:.0} s", state.source, state.age_s)).collect();
        if silent.is_empty() {
            return Ok(());
        }
        Err(format!("{}; check the agent's log", silent.join(", ")))
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
    /// The requested GPU; absent if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<RequestedGpu>,
}

/// The GPU of a `GET /sample`. Its readings are among the others.
#[derive(Debug, Serialize, Deserialize)]
pub struct RequestedGpu {
    /// UUID.
    pub uuid: Option<String>,
    /// PCI bus id.
    pub pci_bus_id: Option<String>,
    /// Model name.
    pub name: Option<String>,
    /// Index in NVML's order.
    pub index: u32,
    /// Active reasons for lowered clocks.
    pub throttle_reasons: Vec<String>,
}

impl RequestedGpu {
    fn new(gpu: GpuSample) -> Self {
        let GpuSample { uuid, pci_bus_id, name, index, throttle_reasons, .. } = gpu;
        Self { uuid, pci_bus_id, name, index, throttle_reasons }
    }
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
    sources: Vec<SourceState>,
    watched_pids: Vec<u32>,
    missing: Vec<MissingCount>,
    spool: SpoolState,
    uplink: UplinkState,
}

#[derive(Clone)]
struct Local {
    shared: Arc<Shared>,
    gather: Gather,
}

/// Returns the router of the local HTTP API; `gather` provides the metrics of `/metrics`.
pub fn router(shared: Arc<Shared>, gather: Gather) -> Router {
    Router::new()
        .route("/sample", get(sample))
        .route("/status", get(status))
        .route("/metrics", get(async |State(local): State<Local>| serve::answer(&local.gather)))
        .layer(from_fn(check_host))
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
        .with_state(Local { shared, gather })
}

/// Rejects requests of web pages that reach this address under their names (DNS rebinding).
async fn check_host(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let is_local = host.parse::<Authority>().is_ok_and(|authority| {
        let name = authority.host().trim_matches(['[', ']']);
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
    });
    if is_local {
        return next.run(request).await;
    }
    let detail = format!("host {host:?} must be localhost or an IP address");
    problem(StatusCode::MISDIRECTED_REQUEST, "foreign-host", &detail)
}

/// Rejects requests for processes of other users, except those of root.
async fn check_owner(pid: u32, user: Option<&ClientUser>) -> Result<(), Response> {
    // A process that does not exist has another error.
    let Ok(process) = tokio::fs::metadata(format!("/proc/{pid}")).await else { return Ok(()) };
    let owner = process.uid();
    let user = match user {
        Some(user) => user.id().await,
        None => None,
    };
    if user == Some(0) || user == Some(owner) {
        return Ok(());
    }
    let user = user.map_or("an unknown user".to_owned(), |user| format!("user {user}"));
    let detail = format!(
        "process {pid} belongs to user {owner}, and the request is from {user}; the agent's --any-user allows it"
    );
    Err(problem(StatusCode::FORBIDDEN, "foreign-process", &detail))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SampleQuery {
    /// A process id, or `self`.
    pid: Option<String>,
    gpu: Option<String>,
}

/// Returns the process id of `pid=`. With `self` it is the client's; `own` has its id if the client is connected over a Unix
/// socket and visible here.
///
/// # Errors
/// The value and the rule that it breaks.
fn requested_process(pid: &str, own: Option<Option<u32>>) -> Result<u32, String> {
    match (pid, own) {
        ("self", Some(Some(own))) => Ok(own),
        ("self", Some(None)) => {
            Err("pid=self: the client's process is not visible to this agent; start the agent in the \
                                     PID namespace of the machine (hostPID: true in Kubernetes)"
                .to_owned())
        }
        ("self", None) => Err("pid=self requires the Unix socket of --socket".to_owned()),
        _ => pid.parse().map_err(|_| format!("pid={pid}: must be a process id, or self")),
    }
}

async fn sample(
    State(local): State<Local>,
    user: Option<Extension<ClientUser>>,
    client: Option<Extension<ClientProcess>>,
    query: Result<Query<SampleQuery>, QueryRejection>,
) -> Response {
    let Query(query) = match query {
        Ok(query) => query,
        Err(rejection) => return problem(StatusCode::BAD_REQUEST, "malformed", &rejection.body_text()),
    };
    let sources = &local.shared.sources;
    let own = client.map(|Extension(client)| client.pid);
    let pid = match query.pid.as_deref().map(|pid| requested_process(pid, own)).transpose() {
        Ok(pid) => pid,
        Err(rule) => return problem(StatusCode::BAD_REQUEST, "malformed", &rule),
    };
    let gpu = match query.gpu.map(|gpu| gpu.parse::<GpuId>()).transpose() {
        Ok(gpu) => gpu,
        Err(error) => return problem(StatusCode::BAD_REQUEST, "malformed", &error.to_string()),
    };
    let (reading, gpu) = match pid {
        None => sources.request_host(gpu).await,
        Some(pid) => {
            if Some(Some(pid)) != own
                && !local.shared.any_user
                && let Err(rejection) = check_owner(pid, user.as_deref()).await
            {
                return rejection;
            }
            let Some(RequestedReading { reading, has_process, gpu }) = sources.request((pid, gpu)).await
            else {
                let detail = format!("process {pid} does not exist");
                return problem(StatusCode::NOT_FOUND, "unknown-process", &detail);
            };
            // Otherwise processes that may not exist displace the others while the source does not respond.
            if has_process {
                lock(&local.shared.watch).request(pid, Instant::now());
            }
            (reading, gpu)
        }
    };
    let Reading { window_s, readings, missing } = reading;
    Json(SampleResponse {
        at_unix_ms: unix_ms(),
        pid,
        window_s,
        readings,
        missing,
        gpu: gpu.map(RequestedGpu::new),
    })
    .into_response()
}

/// Response of `GET /healthz`.
#[derive(Debug, Serialize)]
struct Health {
    status: &'static str,
    /// Time since the last sample, in seconds; absent before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_sample_age_s: Option<f64>,
    sources: Vec<SourceState>,
}

async fn health(State(local): State<Local>) -> Response {
    if let Err(why) = local.shared.healthy() {
        return problem(StatusCode::SERVICE_UNAVAILABLE, "not-sampling", &why);
    }
    let last_sample_age_s = lock(&local.shared.sampling).last.map(|last| last.elapsed().as_secs_f64());
    Json(Health { status: "ok", last_sample_age_s, sources: local.shared.sources.states() }).into_response()
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
        sources: shared.sources.states(),
        watched_pids: lock(&shared.watch).pids().collect(),
        missing: sampling.missing.list(),
        spool: lock(&shared.spool).clone(),
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

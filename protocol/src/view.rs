//! What people and dashboards read: views of jobs, workers, forecasts and nodes.

use serde::{Deserialize, Serialize};

use crate::{Decision, JobId, JobSpec, NodeId, NodeSample, WorkerId, WorkerOverride};

/// `GET /v1/jobs`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobsView {
    /// All jobs, by id.
    pub jobs: Vec<JobView>,
}

/// `GET /v1/jobs/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobView {
    /// The job.
    pub job_id: JobId,
    /// What it asked for.
    pub spec: JobSpec,
    /// Whether it can be allocated to.
    pub state: JobState,
    /// The global batch in force.
    pub global_batch: u64,
    /// The current generation.
    pub generation: u64,
    /// The first iteration that nobody has asked for yet.
    pub next_iteration: u64,
    /// Live workers.
    pub live_workers: u64,
    /// The latest decision, where there was one.
    pub last_decision: Option<Decision>,
    /// How steps are hedged; absent where the job does not want it, or fewer than two live workers can claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hedge: Option<HedgeView>,
}

/// How steps are hedged.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HedgeView {
    /// Share of the latest answer's samples that is in its tail; 0 where it has none.
    pub tail_share: f64,
    /// Chunks of that tail.
    pub chunks: u64,
    /// What a claim costs, in seconds: the mean of recent reports, or what is assumed before the first.
    pub claim_time_s: f64,
}

/// Whether a job can be allocated to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Enough workers are live.
    Running,
    /// Fewer live workers than `min_workers`.
    Paused,
}

/// `GET /v1/jobs/{id}/workers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkersView {
    /// The job.
    pub job_id: JobId,
    /// The current generation.
    pub generation: u64,
    /// All workers that ever joined, in order of joining.
    pub workers: Vec<WorkerView>,
}

/// One worker of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerView {
    /// The worker.
    pub worker: WorkerId,
    /// Live or departed.
    pub state: WorkerState,
    /// Its rank, while live.
    pub rank: Option<u64>,
    /// What it computes on.
    pub device: Option<String>,
    /// Its own floor.
    pub min_local_batch: Option<u64>,
    /// Its own cap.
    pub max_local_batch: Option<u64>,
    /// When it was last heard of, in milliseconds since 1970.
    pub last_seen_unix_ms: i64,
    /// Reports taken from it.
    pub reports: u64,
    /// Its latest measured speed, in samples per second of compute time.
    pub speed_samples_per_s: Option<f64>,
    /// Whether it can claim chunks of a shared tail.
    pub claims: bool,
    /// The pool of the latest answer's tail that it claims from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<u64>,
    /// The cap in force, and where it comes from.
    pub cap: Option<CapView>,
    /// How its time grows with its batch, as far as that is known.
    pub curve: Option<CurveView>,
    /// Set while it is slower than it should be, for long.
    pub straggler: Option<StragglerView>,
    /// What an operator wants of it.
    #[serde(rename = "override")]
    pub operator_override: Option<WorkerOverride>,
}

/// A cap and where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CapView {
    /// Samples at once, at most.
    pub max_local_batch: u64,
    /// The tightest of all bounds.
    pub because: CapReason,
}

/// Where a cap comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CapReason {
    /// The job asked for it.
    Job,
    /// The worker said so when it joined.
    Worker,
    /// An operator wants it.
    Operator,
    /// The peaks that it reported against the memory that it has.
    PeakMemory,
    /// It ran out of memory above.
    OutOfMemory,
}

/// How a worker's time grows with its batch: `time = fixed + per sample * batch`, or flat up to a saturation point.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CurveView {
    /// Whether sizes have varied enough: at one size, slope and fixed cost cannot be told apart, and time is taken as
    /// proportional to the batch.
    pub identified: bool,
    /// Share of the fixed cost in the time at the reference batch, 0 to 1.
    pub fixed_share: f64,
    /// The batch up to which time does not grow, where there is such a point.
    pub saturation_batch: Option<u64>,
    /// The largest batch it was measured at.
    pub largest_batch: u64,
}

/// A worker that is slower than it should be, for long. It is never evicted by us.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StragglerView {
    /// The likely reason.
    pub reason: StragglerReason,
    /// Its speed over what it should be.
    pub speed_ratio: f64,
    /// The iteration it began with.
    pub since_iteration: u64,
    /// What speaks for the reason, in words.
    pub detail: String,
}

/// Why a worker is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StragglerReason {
    /// Its GPU has lowered its clocks.
    ThermalThrottling,
    /// Others use its cores.
    CpuContention,
    /// Its data comes late.
    LoaderWait,
    /// Its machine is short of memory.
    MemoryPressure,
    /// No driver tells.
    Unknown,
}

/// Whether a worker takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// It takes part.
    Live,
    /// It said that it leaves.
    Left,
    /// Its lease ran out.
    Expired,
}

/// `GET /v1/jobs/{id}/forecast`: what each worker is expected to do next, and which models say so.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastView {
    /// The job.
    pub job_id: JobId,
    /// One for each live worker, in rank order.
    pub workers: Vec<WorkerForecastView>,
    /// What went on in the background, since the service started.
    pub refits: RefitView,
}

/// Fits of models in the background.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RefitView {
    /// Networks fitted.
    pub fitted: u64,
    /// Fits that failed; the models before them went on.
    pub failed: u64,
    /// Time spent on fits, on threads of their own.
    pub fit_time_s: f64,
    /// Observations behind the models that are in the store: a restart replays only what came after.
    pub stored_observations: u64,
}

/// The forecast of one worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerForecastView {
    /// The worker.
    pub worker: WorkerId,
    /// Expected speed in the coming iteration; absent while unmeasured.
    pub speed_samples_per_s: Option<f64>,
    /// Lower end of the 90 % interval.
    pub speed_lower_samples_per_s: Option<f64>,
    /// Upper end of the 90 % interval.
    pub speed_upper_samples_per_s: Option<f64>,
    /// Observations that its models have learned from.
    pub observations: u64,
    /// Each model's part in it.
    pub models: Vec<ModelView>,
    /// How often each driver was missing from its reports.
    pub missing_drivers: std::collections::BTreeMap<String, u64>,
}

/// One model's part in a forecast.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelView {
    /// Its name: `last`, `ema_0.3`, `arx`, ..
    pub model: String,
    /// What it expects.
    pub speed_samples_per_s: f64,
    /// Its weight in the mix, 0 to 1.
    pub weight: f64,
    /// Root of its mean squared error in log speed, over its recent record.
    pub log_rmse: Option<f64>,
}

/// `GET /v1/jobs/{id}/speeds?worker=&from=&limit=`: predicted against actual speed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SpeedsView {
    /// The job.
    pub job_id: JobId,
    /// By iteration, then rank.
    pub speeds: Vec<SpeedPoint>,
}

/// Predicted against actual speed of one worker in one iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SpeedPoint {
    /// The iteration.
    pub iteration: u64,
    /// The worker.
    pub worker: WorkerId,
    /// Samples it computed.
    pub local_batch: u64,
    /// Measured speed in samples per second of compute time.
    pub actual_samples_per_s: Option<f64>,
    /// What had been expected.
    pub predicted_samples_per_s: Option<f64>,
    /// Lower end of the 90 % interval.
    pub lower_samples_per_s: Option<f64>,
    /// Upper end of the 90 % interval.
    pub upper_samples_per_s: Option<f64>,
    /// Forward and backward time in seconds.
    pub compute_time_s: f64,
    /// Wait at the barrier in seconds.
    pub barrier_wait_s: Option<f64>,
}

/// `GET /v1/nodes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodesView {
    /// All nodes that ever sent telemetry, by id.
    pub nodes: Vec<NodeView>,
}

/// A node and its latest sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeView {
    /// The node.
    pub node: NodeId,
    /// Samples stored of it.
    pub samples: u64,
    /// The latest.
    pub latest: NodeSample,
}

/// `GET /v1/nodes/{node}/samples?limit=`: the latest samples, the oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SamplesView {
    /// The node.
    pub node: NodeId,
    /// The samples.
    pub samples: Vec<NodeSample>,
}

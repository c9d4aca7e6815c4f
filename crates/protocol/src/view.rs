//! Views of jobs, workers, forecasts and nodes, for people and dashboards.

use serde::{Deserialize, Serialize};

use crate::allocation::first_attempt;
use crate::{Decision, GainView, JobId, JobSpec, NodeId, NodeSample, WorkerId, WorkerOverride};

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
    /// The job options. Absent in the list of all jobs if they cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<JobSpec>,
    /// State of the job.
    pub state: JobState,
    /// Time at which the state began, in milliseconds since 1970. Running jobs: when the job was created. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_since_unix_ms: Option<i64>,
    /// Reason for the state, in words.
    #[serde(default)]
    pub state_reason: String,
    /// Time at which the job was created, in milliseconds since 1970.
    #[serde(default)]
    pub created_unix_ms: i64,
    /// Gain so far over even shares, as in the summary of the job. Absent in the first iterations, and shortly after a restart of
    /// the predictor; in the list of all jobs also if the job is not in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<GainView>,
    /// The current global batch.
    pub global_batch: u64,
    /// The current generation.
    pub generation: u64,
    /// The current attempt of the run, from 1: it rises when the run starts again from an earlier iteration.
    #[serde(default = "first_attempt")]
    pub attempt: u64,
    /// The first iteration that has no allocation yet in this attempt.
    pub next_iteration: u64,
    /// Number of live workers.
    pub live_workers: u64,
    /// The latest decision, if any.
    pub last_decision: Option<Decision>,
    /// Statistics of hedged steps. Absent if the job turned hedging off, or fewer than two live workers can
    /// claim. In the list of all jobs it is also absent if the job is not in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hedge: Option<HedgeView>,
}

/// Statistics of hedged steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HedgeView {
    /// Share of the latest allocation's samples in its tail; 0 if it has no tail.
    pub tail_share: f64,
    /// Number of chunks in that tail.
    pub chunks: u64,
    /// Time of a claim in seconds: the mean of recent reports, or an assumed value before the first report.
    pub claim_time_s: f64,
}

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// No iteration has been reported yet.
    Starting,
    /// Enough workers are live, and they report iterations.
    Running,
    /// Fewer live workers than `min_workers`, but at least one.
    Paused,
    /// Workers are live, but none has reported for 60 s and for 10 times the mean step time.
    Stalled,
    /// All workers left.
    Finished,
    /// No worker is live, and the lease of a worker expired after the latest report or after the other workers left.
    Failed,
    /// The stored job cannot be read, or has options that the predictor does not know. It is not planned.
    Unreadable,
}

impl JobState {
    /// The state in one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stalled => "stalled",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Unreadable => "unreadable",
        }
    }
}

/// `GET /v1/jobs/{id}/workers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkersView {
    /// The job.
    pub job_id: JobId,
    /// The current generation.
    pub generation: u64,
    /// All workers that have ever joined, in order of joining.
    pub workers: Vec<WorkerView>,
}

/// One worker of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerView {
    /// The worker.
    pub worker: WorkerId,
    /// Membership state of the worker.
    pub state: WorkerState,
    /// Its rank, while it is live.
    pub rank: Option<u64>,
    /// Description of the device.
    pub device: Option<String>,
    /// Floor set by the worker.
    pub min_local_batch: Option<u64>,
    /// Cap set by the worker.
    pub max_local_batch: Option<u64>,
    /// Time of its last message, in milliseconds since 1970.
    pub last_seen_unix_ms: i64,
    /// Its latest measured speed, in samples per second of compute time.
    pub speed_samples_per_s: Option<f64>,
    /// Whether it can claim chunks of a shared tail.
    pub claims: bool,
    /// Pool of the latest allocation's tail that it claims from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<u64>,
    /// The current cap and its origin.
    pub cap: Option<CapView>,
    /// Its curve (time over batch size), as far as known.
    pub curve: Option<CurveView>,
    /// Present while it is a straggler: slower than expected for a long time.
    pub straggler: Option<StragglerView>,
    /// Operator's override.
    #[serde(rename = "override")]
    pub operator_override: Option<WorkerOverride>,
}

/// A cap and its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CapView {
    /// Maximum number of samples at once.
    pub max_local_batch: u64,
    /// The origin of the tightest bound.
    pub because: CapReason,
}

/// Origin of a cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CapReason {
    /// The job options.
    Job,
    /// The worker's join request.
    Worker,
    /// An operator's override.
    Operator,
    /// The reported peak memory relative to the worker's memory.
    PeakMemory,
    /// The worker ran out of memory with a larger batch.
    OutOfMemory,
}

/// A worker's curve: `time = fixed + per sample * batch`, or constant up to a saturation point.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CurveView {
    /// Whether batch sizes have varied enough to separate the slope from the fixed cost. If not, time is
    /// assumed to be proportional to the batch.
    pub identified: bool,
    /// Share of the fixed cost in the time at the reference batch, 0 to 1.
    pub fixed_share: f64,
    /// The batch up to which time does not grow, if there is such a point.
    pub saturation_batch: Option<u64>,
    /// The largest batch that the worker was measured at.
    pub largest_batch: u64,
}

/// A straggler: a worker that is slower than expected for a long time. The predictor never evicts it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StragglerView {
    /// The likely reason.
    pub reason: StragglerReason,
    /// Actual speed over the usual speed.
    pub speed_ratio: f64,
    /// The first iteration in which it was slow.
    pub since_iteration: u64,
    /// The evidence for the reason, in words.
    pub detail: String,
}

/// `GET /v1/nodes/{node}/health`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeHealthView {
    /// The node.
    pub node: NodeId,
    /// Whether no worker on the node is a straggler for long.
    pub healthy: bool,
    /// Its stragglers.
    pub stragglers: Vec<NodeStraggler>,
}

/// A straggler on a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeStraggler {
    /// Its job.
    pub job_id: JobId,
    /// The worker.
    pub worker: WorkerId,
    /// Time since which it is a straggler, in milliseconds since 1970.
    pub since_unix_ms: i64,
    /// How slow it is, and why.
    pub straggler: StragglerView,
}

/// Why a worker is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StragglerReason {
    /// The GPU has lowered its clocks.
    ThermalThrottling,
    /// Other processes use its cores.
    CpuContention,
    /// The worker waits for its data loader.
    LoaderWait,
    /// The node is short of memory.
    MemoryPressure,
    /// No driver explains it.
    Unknown,
}

/// Membership state of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// The worker takes part.
    Live,
    /// The worker left.
    Left,
    /// The worker's lease expired.
    Expired,
}

/// `GET /v1/jobs/{id}/forecast`: the forecast of each worker, and the models behind it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastView {
    /// The job.
    pub job_id: JobId,
    /// One entry per live worker, in rank order.
    pub workers: Vec<WorkerForecastView>,
    /// Background fits since the service started.
    pub refits: RefitView,
}

/// Background fits of models.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RefitView {
    /// Number of networks fitted.
    pub fitted: u64,
    /// Number of failed fits; the previous models remain in use.
    pub failed: u64,
    /// Time spent on fits, on separate threads, in seconds.
    pub fit_time_s: f64,
    /// Number of observations in the models in the store. A restart replays only later observations.
    pub stored_observations: u64,
}

/// The forecast of one worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerForecastView {
    /// The worker.
    pub worker: WorkerId,
    /// Expected speed in the next iteration, in samples per second of compute time; absent while the worker
    /// is unmeasured.
    pub speed_samples_per_s: Option<f64>,
    /// Lower end of the 90 % interval of the speed.
    pub speed_lower_samples_per_s: Option<f64>,
    /// Upper end of the 90 % interval of the speed.
    pub speed_upper_samples_per_s: Option<f64>,
    /// Number of observations that its models have learned from.
    pub observations: u64,
    /// The models and their weights.
    pub models: Vec<ModelView>,
    /// Number of reports that each driver was missing from.
    pub missing_drivers: std::collections::BTreeMap<String, u64>,
}

/// One model of a forecast.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelView {
    /// Name of the model: `last`, `ema_0.3`, `arx`, ..
    pub model: String,
    /// Speed that the model predicts.
    pub speed_samples_per_s: f64,
    /// Weight in the mix, 0 to 1.
    pub weight: f64,
    /// Root mean squared error in log speed, over the recent record.
    pub log_rmse: Option<f64>,
}

/// `GET /v1/jobs/{id}/speeds?worker=&from=&limit=`: predicted and actual speeds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SpeedsView {
    /// The job.
    pub job_id: JobId,
    /// Points ordered by iteration, then by rank.
    pub speeds: Vec<SpeedPoint>,
}

/// Predicted and actual speed of one worker in one iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SpeedPoint {
    /// The attempt of the run, from 1.
    #[serde(default = "first_attempt")]
    pub attempt: u64,
    /// The iteration.
    pub iteration: u64,
    /// The worker.
    pub worker: WorkerId,
    /// Number of samples computed.
    pub local_batch: u64,
    /// Measured speed in samples per second of compute time.
    pub actual_samples_per_s: Option<f64>,
    /// Predicted speed.
    pub predicted_samples_per_s: Option<f64>,
    /// Lower end of the 90 % interval of the predicted speed.
    pub lower_samples_per_s: Option<f64>,
    /// Upper end of the 90 % interval of the predicted speed.
    pub upper_samples_per_s: Option<f64>,
    /// Forward and backward time in seconds.
    pub compute_time_s: f64,
    /// Barrier wait in seconds.
    pub barrier_wait_s: Option<f64>,
}

/// `GET /v1/nodes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodesView {
    /// All nodes that have ever sent telemetry, by id.
    pub nodes: Vec<NodeView>,
}

/// A node and its latest sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeView {
    /// The node.
    pub node: NodeId,
    /// Number of stored samples.
    pub samples: u64,
    /// The latest sample.
    pub latest: NodeSample,
    /// The live workers on the node, of jobs that this predictor owns and the client may read.
    #[serde(default)]
    pub workers: Vec<NodeWorker>,
}

/// A worker on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeWorker {
    /// Its job.
    pub job_id: JobId,
    /// The worker.
    pub worker: WorkerId,
}

/// `GET /v1/nodes/{node}/samples?limit=`: the latest samples, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SamplesView {
    /// The node.
    pub node: NodeId,
    /// The samples.
    pub samples: Vec<NodeSample>,
}

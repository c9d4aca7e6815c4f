//! What is seen of a job while it runs: server-sent events, and history in columns for charts.

use serde::{Deserialize, Serialize};

use crate::{DecisionKind, JobId, JobState, NodeId, WorkerId};

/// An event `step` of `GET /v1/jobs/{id}/live`: an iteration whose workers have reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepView {
    /// The iteration.
    pub iteration: u64,
    /// When the last of its reports came, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// The generation that it was planned in.
    pub generation: u64,
    /// Samples over all workers.
    pub global_batch: u64,
    /// Time from the first sample to the end of the barrier, in seconds: the longest that any worker took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_time_s: Option<f64>,
    /// What had been expected of the slowest worker, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_step_time_s: Option<f64>,
    /// The same under even shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub even_step_time_s: Option<f64>,
    /// What was decided for it.
    pub decision: DecisionKind,
    /// Why, in words.
    pub reason: String,
    /// What the learning rate was multiplied by.
    pub lr_multiplier: f64,
    /// Samples that were left to a tail.
    pub tail_samples: u64,
    /// Its workers, in rank order.
    pub workers: Vec<StepWorker>,
}

/// One worker in one iteration. What it has not reported is absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepWorker {
    /// The worker.
    pub worker: WorkerId,
    /// Its position among the live workers.
    pub rank: u64,
    /// Samples that it was given.
    pub local_batch: u64,
    /// Samples that it computed, those of the tail among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Expected speed in samples per second of compute time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_samples_per_s: Option<f64>,
    /// Lower end of its 90 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower_samples_per_s: Option<f64>,
    /// Upper end of its 90 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upper_samples_per_s: Option<f64>,
    /// Measured speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actual_samples_per_s: Option<f64>,
    /// When it was expected to finish what it was given, in seconds after the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_compute_time_s: Option<f64>,
    /// Forward and backward time, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_time_s: Option<f64>,
    /// Wait at the barrier, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier_wait_s: Option<f64>,
}

/// An event `jobs` of `GET /v1/live`: everything at a glance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LiveView {
    /// The service's time, in milliseconds since 1970: what is stale is so by this clock.
    pub now_unix_ms: i64,
    /// All jobs, by id.
    pub jobs: Vec<JobLine>,
    /// All nodes heard of in the last day, by id.
    pub nodes: Vec<NodeLine>,
}

/// A job at a glance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobLine {
    /// The job.
    pub job_id: JobId,
    /// Whether it can be allocated to; absent while nothing of it was read from the store yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// Where the predictor that owns it is reached; absent where it is this one, or nobody owns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Live workers.
    pub live_workers: u64,
    /// The latest iteration that was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration: Option<u64>,
    /// When that was, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_unix_ms: Option<i64>,
    /// Mean of the latest step times (up to 64), in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_time_s: Option<f64>,
    /// Over the same steps: samples per second over all workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_s: Option<f64>,
    /// Over the same steps: share of the workers' time that they waited for the slowest, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_share: Option<f64>,
    /// Over the same steps: mean of |actual - predicted| / predicted speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_ratio: Option<f64>,
    /// The latest decision's reason, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl JobLine {
    /// A job of which only the name is known, and where the predictor is that owns it.
    pub fn named(job_id: JobId, url: Option<String>) -> Self {
        Self {
            job_id,
            state: None,
            url,
            live_workers: 0,
            iteration: None,
            at_unix_ms: None,
            step_time_s: None,
            samples_per_s: None,
            waiting_share: None,
            error_ratio: None,
            reason: None,
        }
    }
}

/// A node at a glance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeLine {
    /// The node.
    pub node: NodeId,
    /// When its latest sample was taken, in milliseconds since 1970, by its own clock.
    pub at_unix_ms: i64,
}

/// `GET /v1/jobs/{id}/history?since_s=&points=`: iterations of a stretch of time, evenly picked, in columns. Each column has
/// as many entries as `iterations`; what is not known is null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HistoryView {
    /// The job.
    pub job_id: JobId,
    /// One of so many iterations is there: 1 means all.
    pub every: u64,
    /// The iterations.
    pub iterations: Vec<u64>,
    /// When they were answered, in milliseconds since 1970.
    pub at_unix_ms: Vec<i64>,
    /// The longest that any worker took, in seconds.
    pub step_time_s: Vec<Option<f64>>,
    /// What had been expected, in seconds.
    pub predicted_step_time_s: Vec<Option<f64>>,
    /// The same under even shares.
    pub even_step_time_s: Vec<Option<f64>>,
    /// What the learning rate was multiplied by.
    pub lr_multiplier: Vec<Option<f64>>,
    /// The workers that took part, in order of their ids.
    pub workers: Vec<WorkerHistory>,
}

/// One worker's columns; four significant digits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerHistory {
    /// The worker.
    pub worker: WorkerId,
    /// Samples that it was given.
    pub local_batch: Vec<Option<u64>>,
    /// Expected speed, samples per second of compute time.
    pub predicted_samples_per_s: Vec<Option<f64>>,
    /// Lower end of its 90 % interval.
    pub lower_samples_per_s: Vec<Option<f64>>,
    /// Upper end of its 90 % interval.
    pub upper_samples_per_s: Vec<Option<f64>>,
    /// Measured speed.
    pub actual_samples_per_s: Vec<Option<f64>>,
    /// Forward and backward time, in seconds.
    pub compute_time_s: Vec<Option<f64>>,
    /// Wait at the barrier, in seconds.
    pub barrier_wait_s: Vec<Option<f64>>,
}

/// `GET /v1/jobs/{id}/log`, and an event `log` of its live stream: what happened, in plain words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogView {
    /// The job.
    pub job_id: JobId,
    /// The latest 500 entries, the oldest first: changes of the plan since this predictor has the job, and comings and goings.
    pub entries: Vec<LogEntry>,
}

/// Something that happened to a job. Steps that changed nothing are not in the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogEntry {
    /// When, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// What kind of thing.
    pub kind: LogKind,
    /// The iteration whose plan changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration: Option<u64>,
    /// The worker that came or went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// In words.
    pub text: String,
}

/// Kinds of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LogKind {
    /// The shares changed.
    Reallocated,
    /// A worker joined.
    Joined,
    /// A worker left.
    Left,
    /// A worker's lease ran out.
    Expired,
    /// A worker ran out of memory.
    OutOfMemory,
    /// An operator pinned, paused or bounded a worker, or lifted that.
    Override,
    /// The job's wishes changed.
    Changed,
    /// Networks were fitted anew.
    Refitted,
}

/// `GET /v1/operator`: whether whoever asks may change what workers get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OperatorView {
    /// Whether the service was given an operator token. Without one overrides are open to whoever reaches it, and the page
    /// offers none.
    pub token_set: bool,
    /// Whether the request carried it (`Authorization: Bearer TOKEN`), or none is needed.
    pub allowed: bool,
}

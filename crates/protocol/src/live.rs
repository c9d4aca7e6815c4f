//! Live views of a job: server-sent events, and history in columns for charts.

use serde::{Deserialize, Serialize};

use crate::allocation::first_attempt;
use crate::{DecisionKind, GainView, JobId, JobState, NodeId, SavedView, WorkerId};

/// Event `step` of `GET /v1/jobs/{id}/live`: an iteration whose workers have reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepView {
    /// The attempt of the run, from 1: it rises when the run starts again from an earlier iteration.
    #[serde(default = "first_attempt")]
    pub attempt: u64,
    /// The iteration.
    pub iteration: u64,
    /// Arrival time of its last report, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// Generation in which it was planned.
    pub generation: u64,
    /// Number of samples over all workers.
    pub global_batch: u64,
    /// Time from the first sample to the end of the barrier, in seconds: the maximum over the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_time_s: Option<f64>,
    /// Predicted time of the slowest worker, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_step_time_s: Option<f64>,
    /// Predicted time of the slowest worker with even shares, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub even_step_time_s: Option<f64>,
    /// The kind of decision.
    pub decision: DecisionKind,
    /// The reason for the decision, in words.
    pub reason: String,
    /// Factor for the learning rate.
    pub lr_multiplier: f64,
    /// Mean loss over the samples of the workers that reported one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Number of samples in the shared tail.
    pub tail_samples: u64,
    /// Unit of batches and speeds, for example `samples` or `tokens`.
    #[serde(default = "samples")]
    pub unit: String,
    /// The workers, in rank order.
    pub workers: Vec<StepWorker>,
}

/// One worker in one iteration. Values that it has not reported are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepWorker {
    /// The worker.
    pub worker: WorkerId,
    /// Its rank: the position among the live workers.
    pub rank: u64,
    /// Number of samples allocated to it.
    pub local_batch: u64,
    /// Number of samples computed, including samples from the tail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Expected speed in samples per second of compute time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_samples_per_s: Option<f64>,
    /// Lower end of the 90 % interval of the speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower_samples_per_s: Option<f64>,
    /// Upper end of the 90 % interval of the speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upper_samples_per_s: Option<f64>,
    /// Measured speed in samples per second of compute time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actual_samples_per_s: Option<f64>,
    /// Predicted compute time of its local batch, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_compute_time_s: Option<f64>,
    /// Forward and backward time, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_time_s: Option<f64>,
    /// Barrier wait, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier_wait_s: Option<f64>,
}

/// Event `jobs` of `GET /v1/live`: a summary of all jobs and nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LiveView {
    /// Time of the service's clock, in milliseconds since 1970. Use it to decide what is stale.
    pub now_unix_ms: i64,
    /// All jobs, by id.
    pub jobs: Vec<JobSummary>,
    /// All nodes that sent telemetry in the last day, by id.
    pub nodes: Vec<NodeSummary>,
}

/// Summary of a job: its state and its statistics, which every view of the job shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobSummary {
    /// The job.
    pub job_id: JobId,
    /// State of the job; absent if another predictor owns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// Time at which the state began, in milliseconds since 1970. Running jobs: when the job was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_since_unix_ms: Option<i64>,
    /// Reason for the state, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// URL of the predictor that owns the job; absent if it is this predictor, or if no predictor owns the
    /// job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Time at which the job was created, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_unix_ms: Option<i64>,
    /// Unit of batches and speeds, for example `samples` or `tokens`.
    #[serde(default = "samples")]
    pub unit: String,
    /// Number of live workers.
    pub live_workers: u64,
    /// Number of workers that are slow now: slower than their device and their history explain.
    #[serde(default)]
    pub slow_workers: u64,
    /// The latest reported iteration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration: Option<u64>,
    /// Its attempt of the run, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
    /// Time of that report, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_unix_ms: Option<i64>,
    /// Mean step time of the latest steps (up to 64), in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_time_s: Option<f64>,
    /// Samples (or the job's unit) per second over all workers, over the same steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_s: Option<f64>,
    /// Time lost waiting so far: `time_lost_s` as a share of the step times of iterations with reported waits, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_share: Option<f64>,
    /// Forecast error: mean of |actual - predicted| / predicted speed, over the same steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_ratio: Option<f64>,
    /// Time of all steps of the job so far, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained_s: Option<f64>,
    /// Time lost waiting so far, in seconds: the mean barrier wait of the workers, summed over the steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_lost_s: Option<f64>,
    /// Gain so far over even shares, as in the summary of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<GainView>,
    /// Time saved so far compared with even shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_saved: Option<SavedView>,
    /// Reason of the latest decision, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The verdict, one to four short sentences: whether planned shares pay, who is slow and why, and how good the forecast is.
    /// Text without markup; it begins with the state unless the job is running. Absent if another predictor owns the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
}

pub(crate) fn samples() -> String {
    "samples".to_owned()
}

impl JobSummary {
    /// Returns a summary with only the id of the job and the URL of its owner.
    pub fn named(job_id: JobId, url: Option<String>) -> Self {
        Self {
            job_id,
            state: None,
            state_since_unix_ms: None,
            state_reason: None,
            url,
            created_unix_ms: None,
            unit: samples(),
            live_workers: 0,
            slow_workers: 0,
            iteration: None,
            attempt: None,
            at_unix_ms: None,
            step_time_s: None,
            samples_per_s: None,
            waiting_share: None,
            error_ratio: None,
            trained_s: None,
            time_lost_s: None,
            gain: None,
            time_saved: None,
            reason: None,
            verdict: None,
        }
    }
}

/// Summary of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeSummary {
    /// The node.
    pub node: NodeId,
    /// Time of its latest sample by the node's clock, in milliseconds since 1970.
    pub at_unix_ms: i64,
}

/// `GET /v1/jobs/{id}/history?since_s=&points=`: iterations in a range of time, evenly sampled, in columns.
/// Each column has as many entries as `iterations`; unknown values are null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HistoryView {
    /// The job.
    pub job_id: JobId,
    /// Sampling interval: every n-th iteration is included. 1 means all.
    pub every: u64,
    /// The attempts of the run that carried out the iterations, from 1. Iterations that a later attempt carried out again are not
    /// included.
    #[serde(default)]
    pub attempts: Vec<u64>,
    /// The iterations.
    pub iterations: Vec<u64>,
    /// Times of the allocations, in milliseconds since 1970.
    pub at_unix_ms: Vec<i64>,
    /// Step times, in seconds: the maximum over the workers.
    pub step_time_s: Vec<Option<f64>>,
    /// Predicted step times, in seconds.
    pub predicted_step_time_s: Vec<Option<f64>>,
    /// Predicted step times with even shares, in seconds.
    pub even_step_time_s: Vec<Option<f64>>,
    /// Factors for the learning rate.
    pub lr_multiplier: Vec<Option<f64>>,
    /// Mean losses over the samples of the workers that reported one.
    #[serde(default)]
    pub loss: Vec<Option<f64>>,
    /// The workers that took part, by id.
    pub workers: Vec<WorkerHistory>,
}

/// One worker's columns, rounded to four significant digits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerHistory {
    /// The worker.
    pub worker: WorkerId,
    /// Number of samples allocated to it.
    pub local_batch: Vec<Option<u64>>,
    /// Expected speed in samples per second of compute time.
    pub predicted_samples_per_s: Vec<Option<f64>>,
    /// Lower end of the 90 % interval of the speed.
    pub lower_samples_per_s: Vec<Option<f64>>,
    /// Upper end of the 90 % interval of the speed.
    pub upper_samples_per_s: Vec<Option<f64>>,
    /// Measured speed in samples per second of compute time.
    pub actual_samples_per_s: Vec<Option<f64>>,
    /// Forward and backward time, in seconds.
    pub compute_time_s: Vec<Option<f64>>,
    /// Barrier wait, in seconds.
    pub barrier_wait_s: Vec<Option<f64>>,
}

/// `GET /v1/jobs/{id}/log`, and event `log` of its live stream: a log of the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogView {
    /// The job.
    pub job_id: JobId,
    /// The latest 500 entries, oldest first: changes of the allocation since this predictor took over the
    /// job, and changes of membership.
    pub entries: Vec<LogEntry>,
}

/// An entry of the job's log. Steps that changed nothing are not logged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogEntry {
    /// Time of the entry, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// The kind of entry.
    pub kind: LogKind,
    /// The iteration whose allocation changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration: Option<u64>,
    /// The worker that joined, left or was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// The message.
    pub text: String,
}

/// Kinds of log entries.
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
    /// A worker's lease expired.
    Expired,
    /// A worker ran out of memory.
    OutOfMemory,
    /// An operator pinned, paused or bounded a worker, or removed an override.
    Override,
    /// The job options changed.
    Changed,
    /// Networks were fitted again.
    Refitted,
    /// A worker became slow: slower than its device and its history explain.
    Slow,
    /// A slow worker is as fast as expected again.
    Recovered,
}

/// `GET /v1/operator`: whether the caller may change overrides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OperatorView {
    /// Whether the service has an operator token. Without a token, any client can change overrides, but the
    /// page has no controls for them.
    pub token_set: bool,
    /// Whether the request contains the token (`Authorization: Bearer TOKEN`), or no token is required.
    pub allowed: bool,
}

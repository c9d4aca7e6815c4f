//! `/allocate`: the request that a trainer sends before each iteration, and the response.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{BackgroundBudget, JobId, OptimizerInstruction, Readings, WorkerId};

/// Body of `POST /allocate`: requests the batches of an iteration and reports on earlier ones.
///
/// # Examples
/// ```
/// use evenstep_protocol::AllocateRequest;
///
/// let request: AllocateRequest = serde_json::from_str(
///     r#"{"job_id": "resnet-a", "generation": 2, "iteration": 1206, "reports": [
///         {"worker": "node-a/0", "iteration": 1204, "local_batch": 192, "compute_time_s": 0.183}]}"#,
/// )?;
/// assert_eq!(request.reports[0].local_batch, 192);
/// // Unknown fields are rejected by name.
/// let error = serde_json::from_str::<AllocateRequest>(r#"{"jobid": "resnet-a"}"#).unwrap_err();
/// assert!(error.to_string().contains("jobid"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AllocateRequest {
    /// The job.
    pub job_id: JobId,
    /// Generation in which the requester trains. A stale generation gets 409 with the current one.
    pub generation: u64,
    /// The requested iteration, from 0; at most 64 after the first iteration that has no allocation yet.
    pub iteration: u64,
    /// Number of samples in this iteration, if less than the job's global batch is left (the ragged end of an
    /// epoch). If the job has a `per_worker_batch`: the number of samples left in the epoch, as an upper
    /// bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_batch: Option<u64>,
    /// Measurements of earlier iterations, one entry per worker and iteration. Reporting again changes
    /// nothing.
    #[serde(default)]
    pub reports: Vec<WorkerReport>,
}

impl AllocateRequest {
    /// Returns a request for a full iteration without reports.
    pub fn new(job_id: JobId, generation: u64, iteration: u64) -> Self {
        Self { job_id, generation, iteration, global_batch: None, reports: Vec::new() }
    }
}

/// Measurements of one worker in one iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WorkerReport {
    /// The worker that was measured.
    pub worker: WorkerId,
    /// The iteration that was measured.
    pub iteration: u64,
    /// Number of samples computed, including samples from the tail.
    pub local_batch: u64,
    /// Forward and backward time over all these samples in seconds, without waiting and claiming.
    pub compute_time_s: f64,
    /// Number of forward and backward passes (micro-batches).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batches: Option<u64>,
    /// The share of this that was claimed from the iteration's tail; absent if no chunk was claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<TailReport>,
    /// Barrier wait for the slowest worker, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier_wait_s: Option<f64>,
    /// Wait for the data loader, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader_wait_s: Option<f64>,
    /// Time of the whole step in seconds, from the end of the previous one: with communication, optimizer and waits. The same
    /// for all workers, so the report of one is enough. If the report stands for several iterations, their total time,
    /// scaled to the samples of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_time_s: Option<f64>,
    /// Number of iterations of this size that the report stands for: all samples of the job since the worker's previous
    /// report over its own. Default: the number of iterations since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iterations: Option<f64>,
    /// Peak memory use so far, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// The work of these samples in the unit of the job, if it is not `local_batch`. It is then learned instead. Not with
    /// `tail`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Squared norm of the worker's mean gradient (`adascale`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_sqr: Option<f64>,
    /// Squared norm of the iteration's global mean gradient (`adascale`); the same in every worker's report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_gradient_sqr: Option<f64>,
    /// Mean loss over the worker's samples, for the loss chart. Forecasts and allocations ignore it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Drivers read at the end of the iteration's compute; they forecast the next iteration. At most 64.
    #[serde(default)]
    pub drivers: Readings,
    #[doc(hidden)]
    #[serde(default, skip_serializing)]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub communication_s: Retired,
    #[doc(hidden)]
    #[serde(default, skip_serializing)]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub overlapped_communication_s: Retired,
}

impl WorkerReport {
    /// Returns a report with only the required fields.
    pub fn new(worker: WorkerId, iteration: u64, local_batch: u64, compute_time_s: f64) -> Self {
        Self {
            worker,
            iteration,
            local_batch,
            compute_time_s,
            micro_batches: None,
            tail: None,
            barrier_wait_s: None,
            loader_wait_s: None,
            step_time_s: None,
            iterations: None,
            peak_memory_bytes: None,
            cost: None,
            gradient_sqr: None,
            global_gradient_sqr: None,
            loss: None,
            drivers: Readings::new(),
            communication_s: Retired,
            overlapped_communication_s: Retired,
        }
    }
}

/// The value of a field that earlier versions read: training loops that still send it continue, and it has no effect.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Retired;

impl<'de> Deserialize<'de> for Retired {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// One worker's work on an iteration's tail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TailReport {
    /// Number of chunks claimed and computed.
    pub chunks: u64,
    /// Number of samples in these chunks.
    pub samples: u64,
    /// Forward and backward time over these samples, in seconds.
    pub compute_time_s: f64,
    /// Time spent waiting for claims without computing, in seconds.
    pub claim_time_s: f64,
}

/// Response of `/allocate`. The response for a given (job, attempt, iteration) never changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AllocateResponse {
    /// The job.
    pub job_id: JobId,
    /// Generation in which the iteration was planned.
    pub generation: u64,
    /// The attempt of the run, from 1: it rises when the run starts again from an earlier iteration.
    #[serde(default = "first_attempt")]
    pub attempt: u64,
    /// The iteration.
    pub iteration: u64,
    /// Number of samples over all workers: exactly the sum of all local batches and all chunks of the tail.
    pub global_batch: u64,
    /// One entry per live worker, in rank order.
    pub allocations: Vec<Allocation>,
    /// The shared tail: samples that belong to no local batch. Workers claim them after their local batches.
    /// Absent if there is no tail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<Tail>,
    /// Instruction for the learning rate.
    pub optimizer: OptimizerInstruction,
    /// The decision and its reason.
    pub decision: Decision,
}

/// The attempt of allocations that were stored without one.
pub(crate) fn first_attempt() -> u64 {
    1
}

/// The part of an iteration that workers claim chunk by chunk, in order, after their local batches. A chunk
/// is claimed by one atomic addition on a counter that the workers share; the predictor is not involved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tail {
    /// Offset of the tail within the iteration's global batch. The tail is the last part of the global batch.
    pub offset: u64,
    /// Number of samples of each chunk, in order.
    pub chunks: Vec<u64>,
    /// Number of chunks of each pool, in order. Pools are used if one counter would be too slow for the
    /// number of workers. Absent: all chunks are in pool 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<u64>,
}

impl AllocateResponse {
    /// Whether the shares are even because planned ones were slower.
    pub fn holds_even(&self) -> bool {
        self.allocations.iter().any(|share| share.held_batch.is_some())
    }
}

/// The allocation of one worker in one iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Allocation {
    /// The worker.
    pub worker: WorkerId,
    /// Its rank: the position among the live workers in order of joining.
    pub rank: u64,
    /// Number of samples to compute.
    pub local_batch: u64,
    /// Offset of its samples within the iteration's global batch: it computes
    /// `offset .. offset + local_batch`.
    pub offset: u64,
    /// Weight of the mean gradient over these samples in the global mean: `local_batch / global_batch`. The
    /// weight of a chunk of the tail is `samples / global_batch`.
    pub gradient_weight: f64,
    /// Number of samples that it would get by the plan: without the tail, or if the shares did not vary on purpose. Absent
    /// if there is no tail and nothing varies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_batch: Option<u64>,
    /// Number of samples that it would get if planned shares were used; absent unless even ones are held because planned ones
    /// were slower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_batch: Option<u64>,
    /// The pool of the tail that it claims from; absent if it claims nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<u64>,
    /// Maximum number of samples per forward and backward pass, if the worker accumulates. The last
    /// micro-batch may be smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<u64>,
    /// Expected compute time in seconds; absent while the worker is unmeasured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_compute_time_s: Option<f64>,
    /// Expected speed in samples per second of compute time; absent while the worker is unmeasured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_speed_samples_per_s: Option<f64>,
    /// Lower end of the 90 % interval of the speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_lower_samples_per_s: Option<f64>,
    /// Upper end of the 90 % interval of the speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_upper_samples_per_s: Option<f64>,
    /// Budget for background work, if the job has background work; absent while any worker is unmeasured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<BackgroundBudget>,
}

/// The decision for an iteration, and its reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Decision {
    /// The kind of decision.
    pub kind: DecisionKind,
    /// The reason in words.
    pub reason: String,
    /// Expected time of the slowest worker with this allocation, in seconds; absent while any worker is
    /// unmeasured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_step_time_s: Option<f64>,
    /// Expected time of the slowest worker under an even split, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub even_step_time_s: Option<f64>,
    /// Loss of the current shares against better ones since they were planned, as a share of a step; absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<f64>,
}

/// Kinds of decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DecisionKind {
    /// Some worker is unmeasured: it gets at most an even share. If all are unmeasured, the shares are even.
    ColdStart,
    /// Shares vary on purpose, to learn batch curves or to measure workers without samples.
    Profiling,
    /// The shares changed to follow the forecast.
    Rebalanced,
    /// The shares stay because a change would gain too little, or even shares are held because planned ones were slower.
    Held,
}

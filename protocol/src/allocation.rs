//! `/allocate`: what a trainer asks before each iteration, and what it is told.

use serde::{Deserialize, Serialize};

use crate::{JobId, LearningRateRule, Readings, WorkerId};

/// `POST /allocate`: the batches of an iteration, please, and here is how earlier ones went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AllocateRequest {
    /// The job.
    pub job_id: JobId,
    /// The generation the asker trains in; a stale one is refused with 409 and the current one.
    pub generation: u64,
    /// The iteration asked for, from 0; at most 64 ahead of the first that nobody has asked for.
    pub iteration: u64,
    /// Samples in this iteration, where fewer than the job's global batch are left (the ragged end of an epoch).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_batch: Option<u64>,
    /// How iterations before this one went, one entry for each worker and iteration. Reporting again changes nothing.
    #[serde(default)]
    pub reports: Vec<WorkerReport>,
}

/// How one iteration went for one worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WorkerReport {
    /// Whose report it is.
    pub worker: WorkerId,
    /// Which iteration it tells of.
    pub iteration: u64,
    /// Samples it computed.
    pub local_batch: u64,
    /// Forward and backward time in seconds, without any waiting.
    pub compute_time_s: f64,
    /// Time it waited at the barrier for the last worker, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier_wait_s: Option<f64>,
    /// Time it waited for its data, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader_wait_s: Option<f64>,
    /// Its highest memory use so far, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Drivers read at the end of that iteration's compute: what forecasts the next. At most 64.
    #[serde(default)]
    pub drivers: Readings,
}

/// The answer to `/allocate`; for one (job, iteration) always the same bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AllocateAnswer {
    /// The job.
    pub job_id: JobId,
    /// The generation it was planned in.
    pub generation: u64,
    /// The iteration.
    pub iteration: u64,
    /// Samples over all workers: exactly the sum of the local batches.
    pub global_batch: u64,
    /// One for each live worker, in rank order.
    pub allocations: Vec<Allocation>,
    /// What the learning rate does.
    pub optimizer: OptimizerInstruction,
    /// What was decided, and why.
    pub decision: Decision,
}

/// The share of one worker in one iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Allocation {
    /// Whose share.
    pub worker: WorkerId,
    /// Its position among the live workers, by order of joining.
    pub rank: u64,
    /// Samples it computes.
    pub local_batch: u64,
    /// Where its samples begin within the iteration's global batch: it takes `offset .. offset + local_batch`.
    pub offset: u64,
    /// Weight of its mean gradient in the global mean: `local_batch / global_batch`.
    pub gradient_weight: f64,
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
}

/// What the learning rate does in this iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OptimizerInstruction {
    /// The job's rule.
    pub rule: LearningRateRule,
    /// Multiply the schedule's learning rate by this.
    pub lr_multiplier: f64,
    /// Multiply the momentum buffer by this (for optimizers that keep the learning rate inside it).
    pub momentum_buffer_scale: f64,
    /// The ramp under way, so that a client can finish it alone.
    pub ramp: Option<Ramp>,
}

/// A linear ramp of the multiplier over iterations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ramp {
    /// Multiplier at its start.
    pub from: f64,
    /// Multiplier at its end.
    pub to: f64,
    /// Iteration it starts at.
    pub start_iteration: u64,
    /// How many iterations it takes.
    pub iterations: u64,
}

/// What was decided for an iteration, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Decision {
    /// The kind of decision.
    pub kind: DecisionKind,
    /// The reason in words.
    pub reason: String,
    /// Expected time of the slowest worker under this allocation, in seconds; absent while any worker is unmeasured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_step_time_s: Option<f64>,
    /// Expected time of the slowest worker under an even split, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub even_step_time_s: Option<f64>,
}

/// Kinds of decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DecisionKind {
    /// Some worker is unmeasured: shares are even, as far as bounds allow.
    ColdStart,
    /// The shares changed to follow the forecast.
    Rebalanced,
    /// The shares stay: a change would gain too little.
    Held,
}

//! `/allocate`: what a trainer asks before each iteration, and what it is told.

use serde::{Deserialize, Serialize};

use crate::{BackgroundBudget, JobId, OptimizerInstruction, Readings, WorkerId};

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
    /// Samples in this iteration, where fewer than the job's global batch are left (the ragged end of an epoch). Where the
    /// job has a `per_worker_batch`: samples that are left in the epoch, as a bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_batch: Option<u64>,
    /// What each coming sample costs, in their order (tokens of a sequence): ranges are then cut so that costs are balanced
    /// and not counts. As many as the iteration has samples, at most 65,536, each positive. Reports must then carry `cost`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cost_per_sample: Vec<f64>,
    /// How iterations before this one went, one entry for each worker and iteration. Reporting again changes nothing.
    #[serde(default)]
    pub reports: Vec<WorkerReport>,
}

impl AllocateRequest {
    /// A whole iteration, without reports.
    pub fn new(job_id: JobId, generation: u64, iteration: u64) -> Self {
        Self {
            job_id,
            generation,
            iteration,
            global_batch: None,
            cost_per_sample: Vec::new(),
            reports: Vec::new(),
        }
    }
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
    /// Samples it computed, those of the tail among them.
    pub local_batch: u64,
    /// Forward and backward time in seconds over all of them, without any waiting and without claiming.
    pub compute_time_s: f64,
    /// In how many forward and backward passes it computed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batches: Option<u64>,
    /// What of this it claimed from the iteration's tail; absent where it claimed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<TailReport>,
    /// Time it waited at the barrier for the last worker, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier_wait_s: Option<f64>,
    /// Time it waited for its data, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader_wait_s: Option<f64>,
    /// Its highest memory use so far, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// What its samples cost together, where the job counts by `cost_per_sample`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Communication that its compute could not hide, in seconds, without waiting for others: where links are unequal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication_s: Option<f64>,
    /// Communication that could run beside its compute, in seconds: longer than what it may hide behind, it rules the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlapped_communication_s: Option<f64>,
    /// Squared norm of its own mean gradient (`adascale`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_sqr: Option<f64>,
    /// Squared norm of the iteration's global mean gradient (`adascale`); the same in every worker's report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_gradient_sqr: Option<f64>,
    /// Drivers read at the end of that iteration's compute: what forecasts the next. At most 64.
    #[serde(default)]
    pub drivers: Readings,
}

impl WorkerReport {
    /// A report of the least there is to say.
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
            peak_memory_bytes: None,
            cost: None,
            communication_s: None,
            overlapped_communication_s: None,
            gradient_sqr: None,
            global_gradient_sqr: None,
            drivers: Readings::new(),
        }
    }
}

/// What one worker did of an iteration's tail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TailReport {
    /// Chunks it claimed, and computed.
    pub chunks: u64,
    /// Samples in them.
    pub samples: u64,
    /// Forward and backward time over them, in seconds.
    pub compute_time_s: f64,
    /// Time in which it waited for the answers to its claims and computed nothing, in seconds.
    pub claim_time_s: f64,
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
    /// Samples over all workers: exactly the sum of the local batches and of the tail's chunks.
    pub global_batch: u64,
    /// One for each live worker, in rank order.
    pub allocations: Vec<Allocation>,
    /// What nobody was given: whoever has done its local batch claims from it. Absent where everything was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<Tail>,
    /// What the learning rate does.
    pub optimizer: OptimizerInstruction,
    /// What was decided, and why.
    pub decision: Decision,
}

/// The part of an iteration that is claimed chunk by chunk, in this order, by workers that have done their local batches. A
/// chunk is claimed by one atomic addition on a counter that the workers share; the service takes no part in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tail {
    /// Where it begins within the iteration's global batch; it is the last part of it.
    pub offset: u64,
    /// Samples of each chunk, in their order.
    pub chunks: Vec<u64>,
    /// Where so many workers claim that one counter would be too slow: how many of the chunks, in their order, each pool has.
    /// Absent: all chunks are in pool 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<u64>,
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
    /// Weight of the mean gradient over these samples in the global mean: `local_batch / global_batch`. A chunk of the tail
    /// weighs `samples / global_batch`.
    pub gradient_weight: f64,
    /// Where there is a tail: what it would compute in all without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_batch: Option<u64>,
    /// The pool of the tail that it claims from; absent where it claims nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<u64>,
    /// Where it accumulates: the most that it computes at once; its local batch takes several of these, the last may be less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<u64>,
    /// What its samples cost together, where the request said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
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
    /// What it may spend on background work, where the job runs some; absent while any worker is unmeasured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<BackgroundBudget>,
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
    /// Some worker is unmeasured: it gets a careful share, or all get even ones where nobody is measured.
    ColdStart,
    /// A short profile at the start: shares are unequal on purpose, so that batch curves become known.
    Profiling,
    /// The shares changed to follow the forecast.
    Rebalanced,
    /// The shares stay: a change would gain too little.
    Held,
}

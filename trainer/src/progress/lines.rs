//! Lines of rank 0 for each iteration, each regrouping and the end: for records and statistics.

use evenstep_protocol::{Decision, Readings, TailReport, WorkerId};
use serde::{Deserialize, Serialize};

use crate::plan::Policy;

/// One iteration under one policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IterationLine {
    /// The policy.
    pub policy: Policy,
    /// The iteration, from 0.
    pub iteration: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// End of the iteration, in seconds since the start of the run.
    pub at_s: f64,
    /// Samples in the iteration.
    pub global_batch: u64,
    /// Multiplier of the learning rate; absent in records of older versions.
    #[serde(default)]
    pub lr_multiplier: Option<f64>,
    /// Under adascale: position of the schedule in iterations of the base batch, if the allocation was made
    /// for this iteration. The trainer's own schedule is constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_iteration: Option<f64>,
    /// Time from the start of the iteration to the end of the optimizer step, on rank 0.
    pub step_time_s: f64,
    /// Time to take over the allocation, part of the step time; in records of older versions also to request it.
    pub request_s: f64,
    /// Round trip of the request for this plan, on the critical path or not.
    pub round_trip_s: Option<f64>,
    /// Processing time of the request, as reported by the predictor.
    pub server_s: Option<f64>,
    /// Time inside the all-reduce on rank 0, including its wait at the barrier.
    pub all_reduce_s: f64,
    /// Mean loss over the global batch.
    pub loss: f64,
    /// Generation of the plan, if the allocation was made for this iteration.
    pub generation: Option<u64>,
    /// Decision behind the plan, if the allocation was made for this iteration.
    pub decision: Option<Decision>,
    /// Largest relative difference to the one-process gradient, if verified.
    pub gradient_difference: Option<f64>,
    /// Lines of the workers, in rank order.
    pub workers: Vec<WorkerLine>,
}

/// One worker's part of an iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerLine {
    /// The worker.
    pub worker: WorkerId,
    /// Samples that the worker computed, tail included.
    pub local_batch: u64,
    /// Time of forward and backward passes, without waiting for claims.
    pub compute_time_s: f64,
    /// Number of forward and backward passes; absent in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batches: Option<u64>,
    /// Samples claimed from the tail, and the wait for claims; absent if the iteration has no tail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<TailReport>,
    /// Wait for the slowest worker.
    pub barrier_wait_s: f64,
    /// Wait for data.
    pub loader_wait_s: f64,
    /// Compute time predicted for the plan.
    pub predicted_compute_time_s: Option<f64>,
    /// Predicted speed.
    pub predicted_speed_samples_per_s: Option<f64>,
    /// Lower end of the 90 % interval.
    pub speed_lower_samples_per_s: Option<f64>,
    /// Upper end of the 90 % interval.
    pub speed_upper_samples_per_s: Option<f64>,
    /// Drivers read when its compute ended.
    pub drivers: Readings,
}

/// Continuation of an elastic run with other workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RegroupLine {
    /// The round that formed the group.
    pub round: u64,
    /// The first iteration of the group.
    pub iteration: u64,
    /// Time of that first iteration's end, in seconds since the start of the run.
    pub at_s: f64,
    /// Time on rank 0 from the failure, or from the end of the old group's last iteration, to the end of the
    /// new group's first iteration.
    pub regroup_s: f64,
    /// Workers of the old group that died or left; a worker that returned at once is also in `joined`.
    pub gone: Vec<WorkerId>,
    /// Workers that were not in the old group.
    pub joined: Vec<WorkerId>,
    /// All workers of the group, in rank order.
    pub workers: Vec<WorkerId>,
}

/// End of a policy's training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndLine {
    /// The policy.
    pub policy: Policy,
    /// Number of iterations.
    pub iterations: u64,
    /// Mean loss on the fixed held-out batch.
    pub final_loss: f64,
    /// Description of the data for the final loss.
    pub evaluation: String,
    /// Micro-batches of the whole run, by rank, that were slower than the imposed pace. More than a few mean
    /// that the imposed speeds were not held.
    pub pace_missed: Vec<u64>,
    /// Reports that were never delivered: dropped from a full backlog, or rejected.
    pub reports_lost: u64,
}

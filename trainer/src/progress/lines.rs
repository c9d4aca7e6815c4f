//! What rank 0 knows of each iteration, of each regrouping and of the end: for records, metrics and statistics.

use evenstep_protocol::{Decision, Readings, TailReport, WorkerId};
use serde::{Deserialize, Serialize};

use crate::plan::Policy;

/// How one iteration went under one policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IterationLine {
    /// The policy.
    pub policy: Policy,
    /// The iteration, from 0.
    pub iteration: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// When it ended, in seconds since the begin of the run.
    pub at_s: f64,
    /// Samples in it.
    pub global_batch: u64,
    /// What the learning rate was multiplied by; absent in records of older versions.
    #[serde(default)]
    pub lr_multiplier: Option<f64>,
    /// Under adascale, how many iterations of the base batch the schedule has come, where it was answered for this very
    /// iteration; the trainer's schedule is constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_iteration: Option<f64>,
    /// From its begin, asking included, to the end of the optimizer step, on rank 0.
    pub step_time_s: f64,
    /// Time that asking and handing out the answer took of it.
    pub ask_s: f64,
    /// Round trip of the request that brought this plan, on the critical path or not.
    pub round_trip_s: Option<f64>,
    /// Time that the predictor says it took for it.
    pub server_s: Option<f64>,
    /// Time inside the all-reduce on rank 0, its own wait at the barrier included.
    pub all_reduce_s: f64,
    /// Mean loss over the global batch.
    pub loss: f64,
    /// The generation of the plan, where it was answered for this very iteration.
    pub generation: Option<u64>,
    /// The decision behind the plan, where it was answered for this very iteration.
    pub decision: Option<Decision>,
    /// Largest relative difference to the one-process gradient, where it was verified.
    pub gradient_difference: Option<f64>,
    /// Each worker, in rank order.
    pub workers: Vec<WorkerLine>,
}

/// How one worker's part went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerLine {
    /// The worker.
    pub worker: WorkerId,
    /// Samples it computed, those of the tail among them.
    pub local_batch: u64,
    /// Forward and backward, without waiting for claims.
    pub compute_time_s: f64,
    /// Forward and backward passes; absent in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batches: Option<u64>,
    /// What of this it claimed from the iteration's tail, and its wait for claims; absent where there was nothing to claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<TailReport>,
    /// Its wait for the last worker.
    pub barrier_wait_s: f64,
    /// Its wait for data.
    pub loader_wait_s: f64,
    /// What the plan expected it to take.
    pub predicted_compute_time_s: Option<f64>,
    /// The speed expected of it.
    pub predicted_speed_samples_per_s: Option<f64>,
    /// Lower end of the 90 % interval.
    pub speed_lower_samples_per_s: Option<f64>,
    /// Upper end of the 90 % interval.
    pub speed_upper_samples_per_s: Option<f64>,
    /// Drivers read when its compute ended.
    pub drivers: Readings,
}

/// How an elastic run went on with other workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RegroupLine {
    /// The round that its group came from.
    pub round: u64,
    /// The first iteration of the group.
    pub iteration: u64,
    /// When that was done, in seconds since the begin of the run.
    pub at_s: f64,
    /// From the failure, or the end of the last iteration of the group before, to the end of the first of this one, as
    /// rank 0 saw it.
    pub regroup_s: f64,
    /// Workers of the group before that died or left; one that came back at once is in `joined` too.
    pub gone: Vec<WorkerId>,
    /// Workers that the group before did not have.
    pub joined: Vec<WorkerId>,
    /// All of them, in rank order.
    pub workers: Vec<WorkerId>,
}

/// How a policy's training ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndLine {
    /// The policy.
    pub policy: Policy,
    /// Iterations that were run.
    pub iterations: u64,
    /// Mean loss on the fixed held-out batch.
    pub final_loss: f64,
    /// What the final loss was measured on.
    pub evaluation: String,
    /// Micro-batches of the whole run, by rank, that were slower than the imposed pace allows: more than a few, and the
    /// imposed speeds were not held.
    pub pace_missed: Vec<u64>,
    /// Reports that were never delivered: dropped from a full backlog, or refused.
    pub reports_lost: u64,
}

//! Jobs and their workers: what is asked for, and who takes part.

use serde::{Deserialize, Serialize};

use crate::{JobId, WorkerId};

/// `PUT /v1/jobs/{id}`: what a job wants. Putting the same again changes nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// Samples per iteration over all workers, 1 to 2^31; a multiple of `quantum`. Fixed once an iteration is answered.
    pub global_batch: u64,
    /// Every local batch is a multiple of this (compilers and tensor cores like few distinct sizes). The ragged end
    /// of an epoch is the exception: one worker takes the remainder. Default 1.
    #[serde(default = "one")]
    pub quantum: u64,
    /// No worker gets less (its floor). Default: one quantum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_local_batch: Option<u64>,
    /// No worker gets more (its cap). Default: no cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_local_batch: Option<u64>,
    /// How the learning rate follows when the global batch changes. Default `dynamic_sgd`.
    #[serde(default)]
    pub rule: LearningRateRule,
    /// With fewer live workers the job is paused. Default 1.
    #[serde(default = "one")]
    pub min_workers: u64,
    /// A worker that is silent for this long has left. Seconds, 1 to 86,400. Default 120.
    #[serde(default = "default_lease_s")]
    pub lease_s: f64,
    /// Hold an allocation while a new one would shorten the predicted step by less than this share. 0 to 1, default .01.
    #[serde(default = "default_min_gain")]
    pub min_gain: f64,
}

impl JobSpec {
    /// A job with this global batch and every other choice at its default.
    pub fn new(global_batch: u64) -> Self {
        Self {
            global_batch,
            quantum: one(),
            min_local_batch: None,
            max_local_batch: None,
            rule: LearningRateRule::default(),
            min_workers: one(),
            lease_s: default_lease_s(),
            min_gain: default_min_gain(),
        }
    }
}

fn one() -> u64 {
    1
}
fn default_lease_s() -> f64 {
    120.0
}
fn default_min_gain() -> f64 {
    0.01
}

/// Rules by which the learning rate follows the global batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LearningRateRule {
    /// The learning rate never changes.
    None,
    /// Dynamic Mini-batch SGD (arXiv 1904.12043): ramp up, snap down.
    #[default]
    DynamicSgd,
}

/// `POST /v1/jobs/{id}/workers`: a worker takes part. Joining again renews the lease and changes nothing else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Its stable id.
    pub worker: WorkerId,
    /// What it computes on, in words ("cpu: AMD EPYC", "NVIDIA H200").
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its own floor, where it is above the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_local_batch: Option<u64>,
    /// Its own cap, where it is under the job's (memory).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_local_batch: Option<u64>,
}

/// The answer to a join or a leave: who takes part from the next unanswered iteration on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JoinAnswer {
    /// The job.
    pub job_id: JobId,
    /// The worker that joined or left.
    pub worker: WorkerId,
    /// Rises by one with every change of the set of workers.
    pub generation: u64,
    /// Live workers in rank order: the position is the rank.
    pub workers: Vec<WorkerId>,
    /// The first iteration that nobody has asked for yet.
    pub next_iteration: u64,
}

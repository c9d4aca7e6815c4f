//! Jobs and their workers: what is asked for, and who takes part.

use serde::{Deserialize, Serialize};

use crate::{BackgroundSettings, JobId, LearningRateRule, LearningRateSettings, WorkerId};

/// `PUT /v1/jobs/{id}`: what a job wants. Putting the same again changes nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// Samples per iteration over all workers, 1 to 2^31; a multiple of `quantum`. Where it changes later, from the next
    /// unanswered iteration on, the learning rate follows by `rule`: what the job began with is its base.
    pub global_batch: u64,
    /// The global batch grows and shrinks with the job: so many samples for each live worker, a multiple of `quantum`. Then
    /// `global_batch` is the base that the learning rate was chosen for. Default: the global batch stays and is shared again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_worker_batch: Option<u64>,
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
    /// Every local batch is one of these (0 where a worker may be left out), instead of multiples of `quantum`. Up to 64,
    /// rising. The ragged end of an epoch is the exception.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_sizes: Vec<u64>,
    /// At most so many distinct local batches in an iteration, for compilers. At least 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distinct_sizes: Option<u64>,
    /// Workers may compute their local batch in several micro-batches, each within their cap: caps then bound memory and not
    /// the share. Default false: caps that cannot hold the batch are an error.
    #[serde(default)]
    pub accumulation: bool,
    /// The first iterations measure every worker at powers of two up to its cap, so that its batch curve is known from the
    /// start. Costs a few slower steps. Default false: curves are learned on the way.
    #[serde(default)]
    pub profile: bool,
    /// Share of a worker's compute after which its first gradients are ready to travel, 0 to 1, for reports that carry
    /// `overlapped_communication_s`. Default .4: forward is about a third.
    #[serde(default = "default_overlap_begins")]
    pub overlap_begins: f64,
    /// Share of a worker's memory that caps learned from its peaks leave free. 0 to .9, default .1.
    #[serde(default = "default_memory_headroom")]
    pub memory_headroom: f64,
    /// How the learning rate follows when the global batch changes. Default `dynamic_sgd`.
    #[serde(default)]
    pub rule: LearningRateRule,
    /// Settings of that rule.
    #[serde(default)]
    pub learning_rate: LearningRateSettings,
    /// Whether part of a batch may be left to a shared tail, where that is worth it and workers can claim. Default `auto`.
    #[serde(default)]
    pub hedge: Hedge,
    /// No chunk of a tail has fewer samples: what the device still computes well. A multiple of `quantum`. Default: one quantum,
    /// and the costs that were measured decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_chunk: Option<u64>,
    /// Background work runs beside this job: answers say how much each worker may spend on it. Default: none, and answers say
    /// nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<BackgroundSettings>,
    /// With fewer live workers the job is paused. Default 1.
    #[serde(default = "one")]
    pub min_workers: u64,
    /// A worker that is silent for this long has left. Seconds, 1 to 86,400. Default 120.
    #[serde(default = "default_lease_s")]
    pub lease_s: f64,
    /// Hold an allocation while a new one would shorten the predicted step by less than this share. 0 to 1, default .02.
    #[serde(default = "default_min_gain")]
    pub min_gain: f64,
    /// No local batch exceeds this many times the largest batch that its worker was measured at, or an even share if that is more:
    /// beyond it the worker's speed is a guess. 1 to 10^9, default 2.
    #[serde(default = "default_max_batch_growth")]
    pub max_batch_growth: f64,
    /// A worker that departed 10 times within 10 minutes may come back after this many seconds only. 0 to 86,400, default 60.
    #[serde(default = "default_flap_cooldown_s")]
    pub flap_cooldown_s: f64,
    /// Reports and answers older than so many seconds become minutes and hours, but for the last 1,024 iterations; those that
    /// went are never answered again. 60 to 10^10. Default: as the service says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_s: Option<u64>,
}

impl JobSpec {
    /// A job with this global batch and every other choice at its default.
    pub fn new(global_batch: u64) -> Self {
        Self {
            global_batch,
            per_worker_batch: None,
            quantum: one(),
            min_local_batch: None,
            max_local_batch: None,
            allowed_sizes: Vec::new(),
            distinct_sizes: None,
            accumulation: false,
            profile: false,
            overlap_begins: default_overlap_begins(),
            memory_headroom: default_memory_headroom(),
            rule: LearningRateRule::default(),
            learning_rate: LearningRateSettings::default(),
            hedge: Hedge::default(),
            min_chunk: None,
            background: None,
            min_workers: one(),
            lease_s: default_lease_s(),
            min_gain: default_min_gain(),
            max_batch_growth: default_max_batch_growth(),
            flap_cooldown_s: default_flap_cooldown_s(),
            keep_s: None,
        }
    }
}

/// Whether part of a batch may be left to a shared tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Hedge {
    /// Where the step is expected to be shorter for it.
    #[default]
    Auto,
    /// Never: every sample is given to a worker.
    Off,
}

fn one() -> u64 {
    1
}
fn default_lease_s() -> f64 {
    120.0
}
fn default_min_gain() -> f64 {
    0.02
}
fn default_max_batch_growth() -> f64 {
    2.0
}
fn default_overlap_begins() -> f64 {
    0.4
}
fn default_memory_headroom() -> f64 {
    0.1
}
fn default_flap_cooldown_s() -> f64 {
    60.0
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
    /// Memory of what it computes on, in bytes: with the peaks that it reports, this gives its cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// It can claim chunks of a shared tail. Default false: it gets all its samples in its local batch.
    #[serde(default)]
    pub claims: bool,
}

impl JoinRequest {
    /// A worker that says nothing but its name.
    pub fn new(worker: WorkerId) -> Self {
        Self {
            worker,
            device: None,
            min_local_batch: None,
            max_local_batch: None,
            memory_bytes: None,
            claims: false,
        }
    }
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

/// `POST /v1/jobs/{id}/workers/{worker}/oom`: a worker ran out of memory. It is capped below that batch from now on, and the
/// iteration, which nobody can have finished, is planned again in a new generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct OomReport {
    /// The iteration that failed.
    pub iteration: u64,
    /// Samples that did not fit: of a micro-batch, where the worker accumulates; at least 2.
    pub local_batch: u64,
}

/// The answer to an out-of-memory report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OomAnswer {
    /// The job.
    pub job_id: JobId,
    /// The worker.
    pub worker: WorkerId,
    /// The most that it will get at once from now on.
    pub max_local_batch: u64,
    /// The generation in which to ask again. Reporting the same twice raises it once.
    pub generation: u64,
}

/// `PUT /v1/jobs/{id}/workers/{worker}/override`: what an operator wants of one worker, from the next unanswered iteration on,
/// until it is deleted. It stands above what the worker itself said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WorkerOverride {
    /// It gets no samples, and stays a member.
    #[serde(default)]
    pub paused: bool,
    /// It gets exactly so many samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_local_batch: Option<u64>,
    /// Its floor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_local_batch: Option<u64>,
    /// Its cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_local_batch: Option<u64>,
}

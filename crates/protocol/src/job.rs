//! Jobs and their workers: job options and membership.

mod retired;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{BackgroundSettings, JobId, LearningRateRule, LearningRateSettings, WorkerId};

/// Body of `PUT /v1/jobs/{id}`: the job options. Sending the same options again changes nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// Number of samples per iteration over all workers, 1 to 2^31; a multiple of `quantum`. A later change
    /// takes effect with the first iteration that has no allocation yet. The learning rate then follows by
    /// `rule`; its base is the first global batch of the job.
    pub global_batch: u64,
    /// The unit of batches, of the work in reports and of speeds: 1 to 16 lower-case letters.
    /// Default `samples`. With another unit, for example `tokens`, the workers cut each iteration in proportion to their
    /// local batches, and report the work of the samples that they computed as `local_batch`.
    #[serde(default = "samples", skip_serializing_if = "is_samples")]
    pub unit: String,
    /// Number of samples per live worker, a multiple of `quantum`. If set, the global batch grows and shrinks
    /// with the number of live workers, and `global_batch` is the base that the learning rate was tuned for.
    /// Default: the global batch is constant and is divided among the live workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_worker_batch: Option<u64>,
    /// Every local batch is a multiple of this number, since compilers and tensor cores work best with few
    /// distinct sizes. Exception: in the ragged end of an epoch, one worker takes the remainder. Default 1.
    #[serde(default = "one")]
    pub quantum: u64,
    /// Minimum local batch of every worker (its floor). Default: one quantum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_local_batch: Option<u64>,
    /// Maximum local batch of every worker (its cap). Default: no cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_local_batch: Option<u64>,
    /// Allowed local batches, multiples of `quantum`: up to 64, ascending. 0 means that a worker
    /// may get no samples. The ragged end of an epoch is an exception.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_sizes: Vec<u64>,
    /// Maximum number of distinct local batches in an iteration, for compilers. At least 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distinct_sizes: Option<u64>,
    /// Whether workers may compute their local batch in several micro-batches, each within their cap. Caps
    /// then bound memory, not the local batch. Default false: an error if the caps cannot hold the global
    /// batch.
    #[serde(default)]
    pub accumulation: bool,
    /// Whether shares may vary on purpose while batch curves are uncertain: by a fifth, in 6 allocations at the start and in at
    /// most 2 of 100 later. Default true.
    #[serde(default = "default_profile")]
    pub profile: bool,
    /// Rule by which the learning rate follows the global batch. Default `dynamic_sgd`.
    #[serde(default)]
    pub rule: LearningRateRule,
    /// Settings of the learning-rate rule.
    #[serde(default)]
    pub learning_rate: LearningRateSettings,
    /// Whether part of a batch may go to a shared tail, if that shortens the step and workers can claim.
    /// Default `auto`.
    #[serde(default)]
    pub hedge: Hedge,
    /// Minimum number of samples in a chunk of the tail: the smallest batch that the device computes
    /// efficiently. A multiple of `quantum`. Default: one quantum; the measured costs then decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_chunk: Option<u64>,
    /// Settings for background work that runs next to this job. If set, each allocation has a budget for
    /// background work. Default: no background work and no budgets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<BackgroundSettings>,
    /// Minimum number of live workers; with fewer, the job is paused. Default 1.
    #[serde(default = "one")]
    pub min_workers: u64,
    /// Lease of a worker in seconds: without a message for this long, it has left. 1 to 86,400, default 120.
    #[serde(default = "default_lease_s")]
    pub lease_s: f64,
    /// Minimum relative gain: the allocation stays while a new one would shorten the predicted step by less
    /// than this share. 0 to 1, default 0.02.
    #[serde(default = "default_min_gain")]
    pub min_gain: f64,
    /// Retention of reports and allocations in seconds. Older ones are rolled up into minutes and hours,
    /// except for the last 1,024 iterations. An allocation that was rolled up can no longer be requested. 60
    /// to 10^10. Default: the service's retention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_s: Option<u64>,
    /// Speeds of workers in an earlier run, in samples per second; at most 10,000. A worker is planned with its own
    /// until its first report. Default: workers without reports get at most an even share.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub initial_speeds: BTreeMap<WorkerId, f64>,
    // See `retired`.
    #[doc(hidden)]
    #[serde(default, deserialize_with = "retired::overlap_begins", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub overlap_begins: Option<f64>,
    #[doc(hidden)]
    #[serde(default, deserialize_with = "retired::memory_headroom", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub memory_headroom: Option<f64>,
    #[doc(hidden)]
    #[serde(
        default,
        deserialize_with = "retired::max_batch_growth",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub max_batch_growth: Option<f64>,
    #[doc(hidden)]
    #[serde(default, deserialize_with = "retired::flap_cooldown_s", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub flap_cooldown_s: Option<f64>,
}

impl JobSpec {
    /// Returns job options with this global batch and defaults for all others.
    pub fn new(global_batch: u64) -> Self {
        Self {
            global_batch,
            unit: samples(),
            per_worker_batch: None,
            quantum: one(),
            min_local_batch: None,
            max_local_batch: None,
            allowed_sizes: Vec::new(),
            distinct_sizes: None,
            accumulation: false,
            profile: default_profile(),
            rule: LearningRateRule::default(),
            learning_rate: LearningRateSettings::default(),
            hedge: Hedge::default(),
            min_chunk: None,
            background: None,
            min_workers: one(),
            lease_s: default_lease_s(),
            min_gain: default_min_gain(),
            keep_s: None,
            initial_speeds: BTreeMap::new(),
            overlap_begins: None,
            memory_headroom: None,
            max_batch_growth: None,
            flap_cooldown_s: None,
        }
    }
}

/// Whether part of a batch may go to a shared tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Hedge {
    /// Use a tail if it is expected to shorten the step.
    #[default]
    Auto,
    /// Never: every sample is allocated to a worker.
    Off,
}

fn one() -> u64 {
    1
}

fn samples() -> String {
    "samples".to_owned()
}

fn is_samples(unit: &str) -> bool {
    unit == "samples"
}
fn default_lease_s() -> f64 {
    120.0
}
fn default_min_gain() -> f64 {
    0.02
}
fn default_profile() -> bool {
    true
}

/// Body of `POST /v1/jobs/{id}/workers`: a worker joins. Joining again renews the lease and changes nothing
/// else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Stable id of the worker.
    pub worker: WorkerId,
    /// Description of the device ("cpu: AMD EPYC", "NVIDIA H200").
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Floor of this worker, if higher than the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_local_batch: Option<u64>,
    /// Cap of this worker, if lower than the job's (memory).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_local_batch: Option<u64>,
    /// Memory of the device in bytes. Together with the reported peak memory, it determines the worker's cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Whether it can claim chunks of a shared tail. Default false: its local batch contains all its samples.
    #[serde(default)]
    pub claims: bool,
}

impl JoinRequest {
    /// Returns a request with only the worker's id.
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

/// Response to a join or a leave: the members from the first iteration on that has no allocation yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JoinResponse {
    /// The job.
    pub job_id: JobId,
    /// The worker that joined or left.
    pub worker: WorkerId,
    /// Generation: rises by one with every change of the set of workers.
    pub generation: u64,
    /// Number of live workers.
    #[serde(default)]
    pub live_workers: u64,
    /// The first live workers in rank order: the index is the rank. At most 64, so that many joins do not list many
    /// workers each; `GET /v1/jobs/{id}/workers` lists all.
    pub workers: Vec<WorkerId>,
    /// The first iteration that has no allocation yet in the current attempt of the run.
    pub next_iteration: u64,
}

impl JoinResponse {
    /// Maximum number of workers in a response.
    pub const WORKERS_MAX: usize = 64;
}

/// Body of `POST /v1/jobs/{id}/workers/{worker}/oom`: a worker ran out of memory. From now on, its cap is
/// below that batch. The iteration, which no worker can have finished, is planned again in a new generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct OomReport {
    /// The iteration that failed.
    pub iteration: u64,
    /// Number of samples that did not fit; of a micro-batch, if the worker accumulates. At least 2.
    pub local_batch: u64,
}

/// Response to an out-of-memory report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OomResponse {
    /// The job.
    pub job_id: JobId,
    /// The worker.
    pub worker: WorkerId,
    /// New maximum number of samples that the worker gets at once.
    pub max_local_batch: u64,
    /// Generation in which to request the iteration again. Reporting the same failure twice raises it once.
    pub generation: u64,
}

/// Body of `PUT /v1/jobs/{id}/workers/{worker}/override`: an operator's override for one worker. It holds
/// from the first iteration on that has no allocation yet, until it is deleted. It takes precedence over the
/// worker's own settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WorkerOverride {
    /// Whether the worker gets no samples; it remains a member.
    #[serde(default)]
    pub paused: bool,
    /// Exact local batch of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_local_batch: Option<u64>,
    /// Floor of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_local_batch: Option<u64>,
    /// Cap of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_local_batch: Option<u64>,
}

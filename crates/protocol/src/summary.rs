//! The summary of a job.

use serde::{Deserialize, Serialize};

use crate::live::samples;
use crate::{JobId, WorkerId};

/// `GET /v1/jobs/{id}/summary`: what the job gained, who was slow, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SummaryView {
    /// The job.
    pub job_id: JobId,
    /// Number of iterations up to the latest one that was reported, as the client counts them: one that a later attempt carried
    /// out again counts once.
    pub iterations: u64,
    /// Unit of batches and speeds, for example `samples` or `tokens`.
    #[serde(default = "samples")]
    pub unit: String,
    /// Estimated time with even shares over the measured time, of whole steps. Absent with fewer than 8 iterations that have
    /// an estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<GainView>,
    /// Time saved so far compared with even shares. Absent with `gain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_saved: Option<SavedView>,
    /// Time lost waiting so far, in seconds: the mean barrier wait of the workers, summed over the steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_lost_s: Option<f64>,
    /// `time_lost_s` as a share of the step times of iterations with reported waits, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_share: Option<f64>,
    /// Forecast error: mean of |actual - predicted| / predicted speed, over the latest steps (up to 64).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_ratio: Option<f64>,
    /// Workers that were below 0.9 times the median speed of the others, at equal work, in at least 5 % of the iterations,
    /// slowest first; at most 8.
    pub slow: Vec<SlowWorker>,
    /// The verdict on the job, as in `JobSummary`.
    #[serde(default)]
    pub verdict: String,
    /// The whole run in three sentences: gain, waiting, slow workers.
    pub lines: Vec<String>,
}

/// An estimated gain with its 90 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GainView {
    /// The estimate. 1 means no gain.
    pub ratio: f64,
    /// Lower end of the interval.
    pub lower: f64,
    /// Upper end of the interval.
    pub upper: f64,
    /// Number of iterations that it is estimated from.
    pub iterations: u64,
}

/// Time saved by a job compared with even shares, with its 90 % interval. Negative if time was lost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SavedView {
    /// The estimate, in seconds.
    pub seconds: f64,
    /// Lower end of the interval, in seconds.
    pub lower_s: f64,
    /// Upper end of the interval, in seconds.
    pub upper_s: f64,
    /// Share of the time with even shares that was saved.
    pub share: f64,
}

/// A worker that was slower than the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SlowWorker {
    /// The worker.
    pub worker: WorkerId,
    /// Its speed over the median speed of the others, at equal work: the median over the iterations in which it was slow.
    pub speed_ratio: f64,
    /// Share of the iterations in which it was slow, 0 to 1.
    pub iterations_share: f64,
    /// The likely reason, in words.
    pub reason: String,
}

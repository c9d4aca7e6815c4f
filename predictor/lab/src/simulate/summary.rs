//! What came out of a run, in numbers.

use serde::Serialize;

use super::settings::PolicyName;
use super::walk::Run;

/// Share of the steps that lie at or under the "p95".
const HIGH_QUANTILE: f64 = 0.95;

/// A run in numbers, over the iterations that count.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// Which policy.
    pub policy: PolicyName,
    /// Mean time of a step in seconds.
    pub mean_step_time_s: f64,
    /// 95 % of the steps took at most so long.
    pub p95_step_time_s: f64,
    /// The mean step of an even split over this one's.
    pub speedup: f64,
    /// The mean step over the oracle's, less 1.
    pub regret: f64,
    /// Iterations in which any share changed.
    pub changes: usize,
    /// Seconds that a worker waited in a step for the slowest, on average.
    pub barrier_wait_s: f64,
    /// Seconds that a worker spent on claims in a step, on average.
    pub claim_s: f64,
    /// Chunks claimed in a step, on average.
    pub chunks: f64,
}

impl Summary {
    /// Of a run, beside those of an even split and of the oracle over the same iterations.
    pub fn of(run: &Run, even: &Run, oracle: &Run) -> Self {
        let mut sorted = run.took_s.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (HIGH_QUANTILE * sorted.len() as f64).ceil() as usize;
        let mean_step_time_s = mean(&run.took_s);
        Self {
            policy: run.policy,
            mean_step_time_s,
            p95_step_time_s: sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN),
            speedup: mean(&even.took_s) / mean_step_time_s,
            regret: mean_step_time_s / mean(&oracle.took_s) - 1.0,
            changes: run.changes,
            barrier_wait_s: mean(&run.wait_s),
            claim_s: mean(&run.claim_s),
            chunks: run.chunks.iter().sum::<u64>() as f64 / run.chunks.len() as f64,
        }
    }
}

/// The mean, of at least one.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

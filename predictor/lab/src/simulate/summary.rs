//! Statistics of a run.

use serde::Serialize;

use super::settings::PolicyName;
use super::walk::Run;

/// Quantile of `p95_step_time_s`.
const HIGH_QUANTILE: f64 = 0.95;

/// Statistics of a run over the iterations that count.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// The policy.
    pub policy: PolicyName,
    /// Mean step time in seconds.
    pub mean_step_time_s: f64,
    /// 95th percentile of the step time in seconds.
    pub p95_step_time_s: f64,
    /// Mean step of the even split divided by the mean step of this policy.
    pub gain: f64,
    /// Mean step divided by the oracle's mean step, minus 1.
    pub regret: f64,
    /// Number of iterations in which any share changed.
    pub changes: usize,
    /// Mean seconds per step that a worker waited for the slowest.
    pub barrier_wait_s: f64,
    /// Mean seconds per step that a worker spent on claims.
    pub claim_s: f64,
    /// Mean number of chunks claimed per step.
    pub chunks: f64,
}

impl Summary {
    /// Summarizes `run`. The even split and the oracle must cover the same iterations.
    pub fn of(run: &Run, even: &Run, oracle: &Run) -> Self {
        let mut sorted = run.step_time_s.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (HIGH_QUANTILE * sorted.len() as f64).ceil() as usize;
        let mean_step_time_s = mean(&run.step_time_s);
        Self {
            policy: run.policy,
            mean_step_time_s,
            p95_step_time_s: sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN),
            gain: mean(&even.step_time_s) / mean_step_time_s,
            regret: mean_step_time_s / mean(&oracle.step_time_s) - 1.0,
            changes: run.changes,
            barrier_wait_s: mean(&run.wait_s),
            claim_s: mean(&run.claim_s),
            chunks: run.chunks.iter().sum::<u64>() as f64 / run.chunks.len() as f64,
        }
    }
}

/// Mean of at least one value.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

//! Time budget for background work in an iteration of a data-parallel job.

use super::limit::Limit;

/// Time budget of one worker in one iteration.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Budget {
    /// `T - t`: time that the worker would wait for the slowest worker, in seconds.
    pub slack_s: f64,
    /// `(1 + eps) T - t`: time for background work that runs in series with the worker's own work, in
    /// seconds.
    pub budget_s: f64,
}

/// Returns the budget of each worker. `finish_s` are the times in seconds at which each worker would finish
/// without background work, and T is the latest of them.
///
/// Background work is allowed if it slows down worker i by a factor of at most `(1 + eps) T / t_i`. So the
/// step takes at most `(1 + eps) T` if all workers use their whole budget. If all workers finish together,
/// they have no slack and a budget of `eps T`.
pub fn budgets(finish_s: &[f64], limit: Limit) -> Vec<Budget> {
    let step_s = finish_s.iter().copied().fold(0.0, f64::max);
    let budget = |finish_s: &f64| Budget {
        slack_s: (step_s - finish_s).max(0.0),
        budget_s: (limit.ratio() * step_s - finish_s).max(0.0),
    };
    finish_s.iter().map(budget).collect()
}

//! How much background work an iteration of a data-parallel job bears.

use super::limit::Limit;

/// What one worker may spend in one iteration.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Budget {
    /// `T - t`: it would wait so long for the slowest, in seconds.
    pub slack_s: f64,
    /// `(1 + eps) T - t`: so many seconds of background work may come on top, one after the other with its own.
    pub budget_s: f64,
}

/// The budget of each worker, by when each would finish alone, in seconds: with `T` the latest of them, background work is
/// legal where it slows worker i down by no more than `(1 + eps) T / t_i`. So the step takes at most `(1 + eps) T` if all spend
/// everything. Workers that finish together have no slack, and only `eps T` to spend.
pub fn budgets(finish_s: &[f64], limit: Limit) -> Vec<Budget> {
    let step_s = finish_s.iter().copied().fold(0.0, f64::max);
    let budget = |finish_s: &f64| Budget {
        slack_s: (step_s - finish_s).max(0.0),
        budget_s: (limit.ratio() * step_s - finish_s).max(0.0),
    };
    finish_s.iter().map(budget).collect()
}

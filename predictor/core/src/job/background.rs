//! The background work that an iteration can carry.

use evenstep_protocol::{Allocation, BackgroundBudget, BackgroundSettings};

use super::tail::Hedging;
use evenstep_rules::gate::{Limit, budgets};

/// Sets the background budget of each allocation. If a worker is unmeasured, no budgets are set, because the
/// end of the step is not known.
///
/// A worker finishes when its compute finishes. A worker that claims from a tail finishes with the step: the tail uses the time that it would wait. This shortens the step, which takes precedence
/// over background work.
pub fn set_budgets(allocations: &mut [Allocation], hedging: Option<&Hedging>, wanted: BackgroundSettings) {
    let Ok(limit) = Limit::new(wanted.slow_down_limit) else { return };
    let finish_s = |share: &Allocation| {
        let finish_s = share.predicted_compute_time_s?;
        let claims_until_s = hedging.filter(|_| share.pool.is_some()).map(|hedging| hedging.step_time_s);
        Some(claims_until_s.map_or(finish_s, |end_s| finish_s.max(end_s)))
    };
    let Some(finish_s) = allocations.iter().map(finish_s).collect::<Option<Vec<f64>>>() else {
        return;
    };
    for (share, budget) in allocations.iter_mut().zip(budgets(&finish_s, limit)) {
        share.background = Some(BackgroundBudget { slack_s: budget.slack_s, budget_s: budget.budget_s });
    }
}

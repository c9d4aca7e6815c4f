//! How much background work an iteration can carry.

use evenstep_protocol::{Allocation, BackgroundBudget, BackgroundSettings};

use super::tail::Hedging;
use crate::gate::{Limit, budgets};
use crate::plan::WorkerOutlook;

/// Gives each share its budget; none if a worker is unmeasured, because the end of the step is not known then.
///
/// A worker finishes when its compute and communication do. One that claims from a tail finishes with the step: the tail fills
/// the time that it would wait and shortens the step, which is worth more than other work.
pub fn set_budgets(
    allocations: &mut [Allocation],
    outlooks: &[WorkerOutlook],
    hedging: Option<&Hedging>,
    wanted: BackgroundSettings,
) {
    let Ok(limit) = Limit::new(wanted.slow_down_limit) else { return };
    let finish_s = |(share, outlook): (&Allocation, &WorkerOutlook)| {
        let finish_s = outlook.communication.finish_s(share.predicted_compute_time_s?);
        let claims_until_s = hedging.filter(|_| share.pool.is_some()).map(|hedging| hedging.step_time_s);
        Some(claims_until_s.map_or(finish_s, |end_s| finish_s.max(end_s)))
    };
    let Some(finish_s) = allocations.iter().zip(outlooks).map(finish_s).collect::<Option<Vec<f64>>>() else {
        return;
    };
    for (share, budget) in allocations.iter_mut().zip(budgets(&finish_s, limit)) {
        share.background = Some(BackgroundBudget { slack_s: budget.slack_s, budget_s: budget.budget_s });
    }
}

//! How much background work an iteration bears, said on the wire.

use evenstep_core::gate::{Limit, budgets};
use evenstep_core::plan::WorkerOutlook;
use evenstep_protocol::{Allocation, BackgroundBudget, BackgroundSettings};

use super::hedge::Hedging;

/// Gives each share its budget; none where somebody is unmeasured, as nobody knows then when the step ends.
///
/// A worker finishes when its compute and communication do. One that claims from a tail finishes with the step: the tail takes
/// up what it would wait, and shortens the step for it, which is worth more than other work.
pub fn say(
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

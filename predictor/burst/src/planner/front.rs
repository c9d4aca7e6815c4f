//! The Pareto front of iteration time and GPU time over amplification limits.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answer::Planned;
use super::check::check;
use super::costs::{Costs, just_below};
use super::error::{BurstError, Infeasible};
use super::problem::{Limit, Problem};
use super::solve::Planner;

/// The front: plans over all amplification limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Front {
    /// Points from the loosest limit to the tightest: iteration time rises, GPU time falls.
    pub points: Vec<FrontPoint>,
    /// Whether the list is complete. Otherwise limits in between may give further points.
    pub complete: bool,
}

/// A Pareto-optimal plan among the best plans of all limits: every other one is slower or uses more GPU time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = BurstFrontPoint)]
pub struct FrontPoint {
    /// Smallest limit that allows the plan, at least 1.
    pub amplification: f64,
    /// Iteration time, in microseconds.
    pub iteration_us: f64,
    /// GPU time of all layers, in microseconds.
    pub gpu_us: f64,
}

/// Returns the front of this problem over limits of 1 and above. It keeps the problem's exemption (none
/// without a limit) and ignores the limit itself.
///
/// The function computes at most `plans_max` plans. Each plan is optimal down to its own amplification, so
/// the next limit is just below it. If the plans do not suffice, the remaining limits are spaced evenly by
/// ratio.
///
/// # Errors
/// The errors of [`plan`](super::plan). A limit without a plan ends the front; it is an error only if it is
/// the first.
pub fn front(problem: &Problem, plans_max: usize) -> Result<Front, BurstError> {
    check(problem)?;
    let exempt_below_us = problem.limit.map_or(0.0, |limit| limit.exempt_below_us);
    // Amplifications are computed only under a limit, so set one that never binds.
    let problem =
        Problem { limit: Some(Limit { amplification: f64::MAX, exempt_below_us }), ..problem.clone() };
    let planner = Planner { costs: Costs::new(&problem)? };
    let mut points: Vec<FrontPoint> = Vec::new();
    let mut complete = true;
    let mut limit = f64::MAX;
    for left in (0..plans_max).rev() {
        let plan = match planner.plan(Some(Limit { amplification: limit, exempt_below_us })) {
            Ok(plan) => plan,
            Err(error) if points.is_empty() => return Err(error),
            Err(error) => {
                complete &= !matches!(error, BurstError::Infeasible(Infeasible::Undecided { .. }));
                break;
            }
        };
        complete &= plan.exact;
        let amplification = amplification(&plan);
        if points.last().is_none_or(|last| plan.gpu_us < last.gpu_us) {
            points.push(FrontPoint { amplification, iteration_us: plan.iteration_us, gpu_us: plan.gpu_us });
        }
        let next = just_below(amplification);
        if next < 1.0 {
            break;
        }
        // The last plan is that of limit 1.
        let spread = next.powf(left.saturating_sub(1) as f64 / left.max(1) as f64);
        let exact = 2 * left > plans_max;
        complete &= left > 0 && (exact || spread >= next);
        limit = if exact { next } else { spread };
    }
    Ok(Front { points, complete: complete && plans_max > 0 })
}

/// Returns the smallest limit that allows this plan.
fn amplification(plan: &Planned) -> f64 {
    let limited = plan.layers.iter().filter(|layer| !layer.exempt);
    limited.filter_map(|layer| layer.amplification).fold(1.0, f64::max)
}

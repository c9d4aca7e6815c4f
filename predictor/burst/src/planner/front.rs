//! What each amplification limit buys: time against GPU time.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answer::Plan;
use super::check::check;
use super::costs::{Costs, just_below};
use super::error::{BurstError, Infeasible};
use super::problem::{Limit, Problem};
use super::solve::Planner;

/// Plans for all amplification limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Front {
    /// From the loosest limit to the tightest: time rises, GPU time falls.
    pub points: Vec<FrontPoint>,
    /// Whether these are all that there are. Otherwise limits in between may give others.
    pub complete: bool,
}

/// A plan that is faster than any that costs less, and cheaper than any that is as fast, among the best plans of all limits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = BurstFrontPoint)]
pub struct FrontPoint {
    /// The smallest limit that allows it, at least 1.
    pub amplification: f64,
    /// An iteration, in microseconds.
    pub iteration_us: f64,
    /// GPU time of all layers, in microseconds.
    pub gpu_us: f64,
}

/// The front of this problem over limits from 1 on, with its exemption (none where it has no limit); its own limit does not
/// matter. It plans at most `plans_max` times: each plan tells down to which limit it is the best one, and the next is asked just
/// below that. Where plans run short, the rest of the limits is spread evenly, in ratios.
///
/// # Errors
/// As [`plan`](super::plan) has them; a limit that no plan keeps ends the front and is no error, unless no limit at all has a plan.
pub fn front(problem: &Problem, plans_max: usize) -> Result<Front, BurstError> {
    check(problem)?;
    let exempt_below_us = problem.limit.map_or(0.0, |limit| limit.exempt_below_us);
    // Amplifications are measured where there is a limit: any will do.
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

/// The smallest limit that allows this plan.
fn amplification(plan: &Plan) -> f64 {
    let limited = plan.layers.iter().filter(|layer| !layer.exempt);
    limited.filter_map(|layer| layer.amplification).fold(1.0, f64::max)
}

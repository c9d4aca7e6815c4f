//! The response to a request: the plan, and the trade-off over amplification limits.

use evenstep_protocol::WorkerForecastView;

use crate::error::PlanError;
use crate::planner::{self, Limit, Problem};
use crate::request::{BurstRequest, EXEMPT_BELOW_US, problem};
use crate::response::{BurstPlan, answer};
use crate::work::front_plans;

/// Returns the best plan and the trade-off over amplification limits. The result depends only on the request;
/// computing it takes milliseconds to seconds.
///
/// # Errors
/// A value violates a rule, or no plan satisfies all limits.
pub fn plan(request: &BurstRequest) -> Result<BurstPlan, PlanError> {
    let problem = problem(request)?;
    let front_plans = front_plans(&problem)?;
    let plan = planner::plan(&problem)?;
    let exempt_below_us = request.exempt_below_us.unwrap_or(EXEMPT_BELOW_US);
    let any = Some(Limit { amplification: f64::MAX, exempt_below_us });
    // Without costs on one GPU there is no amplification to limit, and no front.
    let front =
        (front_plans > 0).then(|| planner::front(&Problem { limit: any, ..problem.clone() }, front_plans));
    Ok(answer(request, &problem, &plan, front.and_then(Result::ok), exempt_below_us))
}

/// Returns the forecast speeds of workers, relative to the fastest. An unmeasured worker gets the mean of the
/// others. If no worker is measured, all speeds are 1.
pub fn relative_speeds(workers: &[WorkerForecastView]) -> Vec<f64> {
    let speeds: Vec<Option<f64>> = workers.iter().map(|worker| worker.speed_samples_per_s).collect();
    let known = || speeds.iter().flatten();
    let count = known().count();
    let fastest = known().copied().fold(0.0, f64::max);
    if count == 0 || fastest <= 0.0 {
        return vec![1.0; workers.len()];
    }
    let mean = known().sum::<f64>() / count as f64;
    speeds.iter().map(|speed| speed.unwrap_or(mean) / fastest).collect()
}

#[cfg(test)]
mod fuzz;

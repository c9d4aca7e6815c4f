//! Burst-parallel plans as they are asked for over HTTP and on the command line: one way from the wire's words to the core's problem
//! (`problem`), one way back (`answer`).

mod answer;
mod problem;

use evenstep_core::burst::{self, BurstError, Limit, Problem};
use evenstep_protocol::{BurstPlan, BurstRequest};

pub use problem::{CELLS_MAX, EXEMPT_BELOW_US, problem};

/// The most plans that are made to find out what limits buy.
pub const FRONT_PLANS: usize = 32;

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// What was asked breaks a rule; the words name the value and the rule.
    #[error("{0}")]
    Invalid(String),
    /// The core says no.
    #[error(transparent)]
    Burst(#[from] BurstError),
}

impl PlanError {
    /// Whether all that was asked makes sense, but no plan keeps the rules.
    pub fn is_infeasible(&self) -> bool {
        matches!(self, Self::Burst(BurstError::Infeasible(_)))
    }
}

/// The best plan, and what each amplification limit buys. Takes from milliseconds to seconds, and nothing but the request.
///
/// # Errors
/// Where a value breaks a rule, or no plan keeps all of them.
pub fn plan(request: &BurstRequest) -> Result<BurstPlan, PlanError> {
    let problem = problem(request)?;
    let plan = burst::plan(&problem)?;
    let exempt_below_us = request.exempt_below_us.unwrap_or(EXEMPT_BELOW_US);
    let any = Some(Limit { amplification: f64::MAX, exempt_below_us });
    // Without costs on one GPU there is no amplification to limit, and no front.
    let front = burst::front(&Problem { limit: any, ..problem.clone() }, FRONT_PLANS).ok();
    Ok(answer::answer(request, &problem, &plan, front, exempt_below_us))
}

//! Errors of a plan request.

use crate::planner::BurstError;

/// Reasons for a plan request to fail.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The request violates a rule; the message names the value and the rule.
    #[error("{0}")]
    Invalid(String),
    /// The planner rejects the problem or finds no plan.
    #[error(transparent)]
    Burst(#[from] BurstError),
}

impl PlanError {
    /// Returns whether the request is valid but no plan satisfies its limits.
    pub fn is_infeasible(&self) -> bool {
        matches!(self, Self::Burst(BurstError::Infeasible(_)))
    }
}

//! Why there is no plan.

use crate::planner::BurstError;

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

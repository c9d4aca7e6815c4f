//! Background work next to a job: its limit, and the budget of each iteration.

use serde::{Deserialize, Serialize};

/// Settings for background work that runs next to a job.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BackgroundSettings {
    /// Maximum iteration time with background work, as a multiple of the time without it. 1 to 10, default
    /// 1.1.
    #[serde(default = "default_slow_down_limit")]
    pub slow_down_limit: f64,
}

impl Default for BackgroundSettings {
    fn default() -> Self {
        Self { slow_down_limit: default_slow_down_limit() }
    }
}

fn default_slow_down_limit() -> f64 {
    1.1
}

/// Budget of one worker for background work in one iteration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackgroundBudget {
    /// Expected wait for the slowest worker, in seconds; 0 if the worker would claim from the tail instead.
    pub slack_s: f64,
    /// Maximum delay of the worker by background work in the whole iteration, in seconds: its slack plus the
    /// time that the limit adds. If all workers spend their whole budgets, the expected step is
    /// `slow_down_limit` times as long.
    pub budget_s: f64,
}

//! Background work beside a job: what is asked for, and what each iteration bears.

use serde::{Deserialize, Serialize};

/// A job beside which background work runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BackgroundSettings {
    /// With it an iteration takes at most so many times as long as alone. 1 to 10, default 1.1.
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

/// What one worker may spend on background work in one iteration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackgroundBudget {
    /// It would wait so long for the slowest worker, in seconds; 0 where it would claim from the tail instead.
    pub slack_s: f64,
    /// So much background work may delay it in the whole iteration, in seconds: its slack, and what the limit adds. If all
    /// workers spend everything, the expected step is `slow_down_limit` times as long.
    pub budget_s: f64,
}

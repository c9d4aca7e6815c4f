//! What keeps an allocation from changing.

use serde::{Deserialize, Serialize};

/// Rules of calm: an allocation that changes at every breath costs more than it brings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Calm {
    /// Hold while no share would change by more than this part of itself. 0 to 1, default 0.
    pub dead_band: f64,
    /// Hold for at least so many iterations after a change. 0 to 1,000,000, default 0.
    pub dwell: u64,
    /// What a change costs (recompilation, new graphs), in seconds: it must be earned back within as many iterations as the
    /// allocation in force has lasted. Default 0.
    pub change_cost_s: f64,
    /// No worker gets more than this many times the largest batch it was measured at. At least 1, default 2.
    pub trust: f64,
    /// While the predicted finish times differ by less than this share, go half of the way only. 0 to 10, default 0: always
    /// the whole way.
    pub fine_tune_below: f64,
}

impl Default for Calm {
    fn default() -> Self {
        Self { dead_band: 0.0, dwell: 0, change_cost_s: 0.0, trust: 2.0, fine_tune_below: 0.0 }
    }
}

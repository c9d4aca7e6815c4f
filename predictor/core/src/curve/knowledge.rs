//! What is known of a worker's curve.

use serde::{Deserialize, Serialize};

/// What is known of a worker's curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Knowledge {
    /// Time is taken as proportional to the batch: it ran at one size only, or nearly, where a fixed cost and a cost per sample
    /// cannot be told apart; or nothing else is proven yet.
    Unproven,
    /// Sizes differed enough, and this form is proven.
    Identified {
        /// The form that predicts best.
        kind: Kind,
        /// Share of the time at the reference batch (the first one seen) that no batch size changes.
        fixed_share: f64,
        /// Samples up to which time is flat; `None` where it grows from the first.
        saturation: Option<u64>,
    },
}

/// Forms of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A cost per sample alone.
    Proportional,
    /// A fixed cost and a cost per sample.
    Linear,
    /// Flat up to the saturation point, then linear.
    Saturating,
    /// Straight lines through profiled sizes.
    Measured,
}

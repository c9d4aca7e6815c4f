//! Learning the form of a curve from what a job runs.

use serde::{Deserialize, Serialize};

use super::Curve;

/// The form of a worker's curve, learned while it runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CurveLearner {
    largest: u64,
}

/// What is known of a worker's curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Knowledge {
    /// It ran at one size only, or nearly: a fixed cost and a cost per sample cannot be told apart, and time is taken as
    /// proportional to the batch.
    OneSize,
    /// Sizes differed enough.
    Identified {
        /// The form that predicts best.
        kind: Kind,
        /// Share of the time at the reference batch (the first one seen) that does not depend on the batch.
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
    /// Straight lines through measured sizes.
    Measured,
}

impl CurveLearner {
    /// Knows nothing: time is proportional to the batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes what a batch took; a batch of 0, or a time that is not positive and finite, says nothing.
    pub fn observe(&mut self, batch: u64, compute_time_s: f64) {
        if compute_time_s.is_finite() && compute_time_s > 0.0 {
            self.largest = self.largest.max(batch);
        }
    }

    /// Samples at the reference batch (the first one seen) that take as long as this batch: `batch` itself while time
    /// is taken as proportional, and always at the reference. `work(x) / t` is a speed that does not depend on the batch.
    pub fn work(&self, batch: u64) -> f64 {
        batch as f64
    }

    /// The curve of a worker that does `speed` units of [`work`](Self::work) per second.
    pub fn curve_at(&self, speed: f64) -> Curve {
        Curve::at_speed(speed)
    }

    /// The largest batch measured; 0 before the first.
    pub fn largest(&self) -> u64 {
        self.largest
    }

    /// What is known of the form.
    pub fn knowledge(&self) -> Knowledge {
        Knowledge::OneSize
    }
}

//! One worker as an input of a split.

use crate::curve::{Curve, largest};

/// A worker's curve and its bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct SplitWorker {
    /// Compute time over batch size.
    pub curve: Curve,
    /// Minimum batch in samples; rounded up to a multiple of the quantum.
    pub floor: u64,
    /// Maximum batch in samples; rounded down to a multiple of the quantum.
    pub cap: Option<u64>,
}

impl SplitWorker {
    /// Returns a worker without bounds.
    pub fn new(curve: Curve) -> Self {
        Self { curve, floor: 0, cap: None }
    }

    /// Returns the time in seconds at which the worker finishes a batch.
    pub fn finish_s(&self, samples: u64) -> f64 {
        self.curve.time(samples)
    }

    /// Returns the largest batch, at most `most`, that the worker finishes by `time_s`; 0 if it finishes
    /// none.
    pub fn batch_within(&self, time_s: f64, most: u64) -> u64 {
        largest(self.amount_within(time_s), most, |batch| self.finish_s(batch) <= time_s)
    }

    /// Returns the real-valued number of samples that the worker finishes by `time_s`, up to rounding.
    pub(super) fn amount_within(&self, time_s: f64) -> f64 {
        self.curve.amount_within(time_s)
    }
}

//! One worker as an input of a split.

use crate::curve::{Curve, largest};

/// A worker's curve, its communication and its bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// Compute time over batch size.
    pub curve: Curve,
    /// Time for communication, in addition to the compute time.
    pub communication: Communication,
    /// Minimum batch in samples; rounded up to a multiple of the quantum.
    pub floor: u64,
    /// Maximum batch in samples; rounded down to a multiple of the quantum.
    pub cap: Option<u64>,
}

/// The communication time of a step, part of which overlaps with the compute.
///
/// Gradients are exchanged in buckets, and the first bucket is exchanged while the backward pass is still
/// running. The model is from Cannikin (Nie et al., Middleware 2024). There a step is compute-bound or
/// communication-bound, depending on which of the two ends last.
///
/// With compute time c a worker finishes at `max(c, begins * c + hidden_s) + exposed_s`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Communication {
    /// Communication that never overlaps with compute, such as the last bucket; in seconds.
    pub exposed_s: f64,
    /// Communication that can overlap with compute; in seconds.
    pub hidden_s: f64,
    /// Share of the compute, 0 to 1, after which the first bucket is ready.
    pub begins: f64,
}

impl Communication {
    /// Returns the time at which both compute and communication are finished, given the compute time.
    pub fn finish_s(&self, compute_s: f64) -> f64 {
        let exchanged_s = self.begins * compute_s + self.hidden_s;
        // `f64::max` is slower because it handles NaN, and a split calls this several hundred thousand times.
        (if exchanged_s > compute_s { exchanged_s } else { compute_s }) + self.exposed_s
    }

    /// Returns the largest compute time with which a worker finishes by `time_s`, up to rounding.
    fn compute_within(&self, time_s: f64) -> f64 {
        let left = time_s - self.exposed_s;
        if self.hidden_s <= 0.0 {
            left
        } else if self.begins > 0.0 {
            left.min((left - self.hidden_s) / self.begins)
        } else if left < self.hidden_s {
            f64::NEG_INFINITY
        } else {
            left
        }
    }
}

impl Share {
    /// Returns a worker without communication or bounds.
    pub fn new(curve: Curve) -> Self {
        Self { curve, communication: Communication::default(), floor: 0, cap: None }
    }

    /// Returns the time in seconds at which the worker finishes a batch.
    pub fn finish_s(&self, samples: u64) -> f64 {
        self.communication.finish_s(self.curve.time(samples))
    }

    /// Returns the largest batch, at most `most`, that the worker finishes by `time_s`; 0 if it finishes
    /// none.
    pub fn batch_within(&self, time_s: f64, most: u64) -> u64 {
        largest(self.amount_within(time_s), most, |batch| self.finish_s(batch) <= time_s)
    }

    /// Returns the real-valued number of samples that the worker finishes by `time_s`, up to rounding.
    pub(super) fn amount_within(&self, time_s: f64) -> f64 {
        self.curve.amount_within(self.communication.compute_within(time_s))
    }
}

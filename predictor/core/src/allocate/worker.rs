//! One worker, as the split sees it.

use crate::curve::{Curve, largest};

/// A worker's curve, its communication and its bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// How its time grows with its batch.
    pub curve: Curve,
    /// What it takes beside the compute.
    pub communication: Communication,
    /// It takes at least this many samples; rounded up to the quantum.
    pub floor: u64,
    /// It takes at most this many samples; rounded down to the quantum.
    pub cap: Option<u64>,
}

/// The time of a step beside the compute: gradients are exchanged in buckets, the first while the backward still runs
/// (the model of Cannikin, Nie et al., Middleware 2024, whose steps are compute-bound or communication-bound by which
/// of the two ends last).
///
/// With compute time c a worker finishes at `max(c, begins * c + hidden_s) + exposed_s`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Communication {
    /// What never overlaps, such as the last bucket; in seconds.
    pub exposed_s: f64,
    /// What may overlap with the compute; in seconds.
    pub hidden_s: f64,
    /// Share of the compute, 0 to 1, after which the first bucket is ready.
    pub begins: f64,
}

impl Communication {
    /// When a worker that computes for `compute_s` is done with both.
    pub fn finish_s(&self, compute_s: f64) -> f64 {
        let exchanged_s = self.begins * compute_s + self.hidden_s;
        // Without `f64::max`, which minds NaN: splits call this some hundred thousand times.
        (if exchanged_s > compute_s { exchanged_s } else { compute_s }) + self.exposed_s
    }

    /// The compute time that is done by `time_s`, to rounding.
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
    /// A worker without communication or bounds.
    pub fn new(curve: Curve) -> Self {
        Self { curve, communication: Communication::default(), floor: 0, cap: None }
    }

    /// When it finishes a batch.
    pub fn finish_s(&self, samples: u64) -> f64 {
        self.communication.finish_s(self.curve.time(samples))
    }

    /// The largest batch, at most `most`, that it finishes by `time_s`; 0 where it finishes none.
    pub fn batch_within(&self, time_s: f64, most: u64) -> u64 {
        largest(self.amount_within(time_s), most, |batch| self.finish_s(batch) <= time_s)
    }

    /// The work that it finishes by `time_s`, to rounding.
    pub(super) fn amount_within(&self, time_s: f64) -> f64 {
        self.curve.amount_within(self.communication.compute_within(time_s))
    }
}

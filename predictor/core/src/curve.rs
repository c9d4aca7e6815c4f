//! How a worker's compute time grows with its batch.

/// Time against batch: `time(x) = fixed_s + per_sample_s * x` for x > 0, and 0 for x = 0.
///
/// A worker known at one batch size only has no fixed cost that could be told apart: [`Curve::at_speed`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Curve {
    fixed_s: f64,
    per_sample_s: f64,
}

impl Curve {
    /// A worker that computes `speed` samples per second at any batch; `speed` is positive and finite.
    pub fn at_speed(speed: f64) -> Self {
        Self::linear(0.0, 1.0 / speed)
    }

    /// A fixed cost and a cost per sample in seconds; both finite, the first >= 0, the second > 0.
    pub fn linear(fixed_s: f64, per_sample_s: f64) -> Self {
        debug_assert!(
            fixed_s >= 0.0 && fixed_s.is_finite() && per_sample_s > 0.0 && per_sample_s.is_finite()
        );
        Self { fixed_s, per_sample_s }
    }

    /// Seconds for a batch of `samples`.
    pub fn time(&self, samples: u64) -> f64 {
        if samples == 0 { 0.0 } else { self.fixed_s + self.per_sample_s * samples as f64 }
    }

    /// The largest batch, at most `most`, that is done within `time_s`.
    pub fn batch_within(&self, time_s: f64, most: u64) -> u64 {
        let estimate = ((time_s - self.fixed_s) / self.per_sample_s).max(0.0);
        let mut batch = if estimate >= most as f64 { most } else { estimate as u64 };
        // The division may round across the edge: `time` decides.
        while batch > 0 && self.time(batch) > time_s {
            batch -= 1;
        }
        while batch < most && self.time(batch + 1) <= time_s {
            batch += 1;
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn batch_within_is_the_inverse_of_time(
            fixed in 0.0f64..1.0, per_sample in 1e-6f64..1.0, time in 0.0f64..100.0, most in 0u64..1_000_000
        ) {
            let curve = Curve::linear(fixed, per_sample);
            let batch = curve.batch_within(time, most);
            prop_assert!(batch <= most);
            prop_assert!(batch == 0 || curve.time(batch) <= time);
            prop_assert!(batch == most || curve.time(batch + 1) > time);
        }

        /// At the very edge of a batch, where the division may round either way.
        #[test]
        fn the_edge_belongs_to_the_batch(fixed in 0.0f64..1.0, per_sample in 1e-6f64..1.0, batch in 1u64..1_000_000) {
            let curve = Curve::linear(fixed, per_sample);
            let time = curve.time(batch);
            prop_assert_eq!(curve.batch_within(time, u64::MAX), batch);
            prop_assert_eq!(curve.batch_within(time.next_down(), u64::MAX), batch - 1);
        }
    }
}

//! The pause before a retry.

use std::time::Duration;

/// Exponential back-off: the steps double from the first to the longest.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// let mut backoff = evenstep_client::Backoff::default();
/// assert_eq!(backoff.next_pause(), Duration::from_millis(100));
/// assert_eq!(backoff.next_pause(), Duration::from_millis(200));
/// backoff.reset();
/// assert_eq!(backoff.next_pause(), Duration::from_millis(100));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Creates a back-off with steps from `first` to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the pause after another failure: a full step.
    pub fn next_pause(&mut self) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1).min(32);
        self.first.saturating_mul(factor).min(self.longest)
    }

    /// Returns the pause after another failure, with jitter: between half of the step (`random` = 0) and the
    /// full step (`random` = 1). Clients that lost the same predictor then do not retry at the same moment.
    pub fn next_pause_with_jitter(&mut self, random: f64) -> Duration {
        self.next_pause().mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))
    }
}

/// From 100 ms to 2 s.
impl Default for Backoff {
    fn default() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(2))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pauses_grow_within_their_bounds(randoms in prop::collection::vec(0.0..=1.0, 40)) {
            let (first, longest) = (Duration::from_millis(500), Duration::from_secs(30));
            let mut backoff = Backoff::new(first, longest);
            for (failure, random) in (0..).zip(randoms) {
                let pause = backoff.next_pause_with_jitter(random).as_secs_f64();
                let step = (0.5 * 2_f64.powi(failure)).min(30.0);
                prop_assert!(pause >= step / 2.0 - 1e-6 && pause <= step + 1e-6, "{pause} {step}");
            }
            backoff.reset();
            prop_assert_eq!(backoff.next_pause(), first);
        }
    }
}

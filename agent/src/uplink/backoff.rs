//! How long to wait before trying again.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The first wait, before jitter.
const FIRST: Duration = Duration::from_millis(500);
/// The longest wait of our own choosing.
const LONGEST: Duration = Duration::from_secs(30);
/// The longest wait that a server may ask for.
const ASKED_LONGEST: Duration = Duration::from_secs(300);

/// Exponential backoff with jitter: agents that lost one predictor do not all come back in the same moment.
#[derive(Debug)]
pub struct Backoff {
    random: ChaCha8Rng,
    failures: u32,
}

impl Backoff {
    /// A backoff whose jitter depends on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), failures: 0 }
    }

    /// Something worked: the next failure is a first one.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// The wait after another failure: between half of the step and all of it, and never less than what the server
    /// asked for.
    pub fn next(&mut self, asked: Option<Duration>) -> Duration {
        let step = FIRST.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX)).min(LONGEST);
        self.failures = self.failures.saturating_add(1).min(16);
        let wait = step.mul_f64(self.random.random_range(0.5..=1.0));
        asked.map_or(wait, |asked| wait.max(asked.min(ASKED_LONGEST)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn waits_grow_within_their_bounds(seed: u64, asked in prop::option::of(0_u64..1000)) {
            let mut backoff = Backoff::new(seed);
            let asked = asked.map(Duration::from_secs);
            for failure in 0..40_u32 {
                let wait = backoff.next(asked);
                let step = (0.5 * 2_f64.powi(failure as i32)).min(30.0);
                let floor = asked.map_or(0.0, |asked| asked.as_secs_f64().min(300.0));
                prop_assert!(wait.as_secs_f64() >= (step / 2.0).max(floor) - 1e-6);
                prop_assert!(wait.as_secs_f64() <= step.max(floor) + 1e-6);
            }
            backoff.reset();
            prop_assert!(backoff.next(None) <= FIRST);
        }
    }
}

//! Imposed speeds: real gradients, then a wait until the time that a slower machine would have taken.

use std::time::{Duration, Instant};

/// Makes this worker as slow as wanted: `unit / speed` seconds a sample.
#[derive(Debug, Clone)]
pub struct Pace {
    seconds_per_sample: f64,
    missed: u64,
}

impl Pace {
    /// A speed relative to the unit, which is the time of one sample at speed 1.
    pub fn new(speed: f64, unit: Duration) -> Self {
        Self { seconds_per_sample: unit.as_secs_f64() / speed, missed: 0 }
    }

    /// When `samples` may be done that were begun at `started`. Targets count from the begin of the step, so that what
    /// one micro-batch oversleeps the next one makes up for.
    fn target(&self, started: Instant, samples: u64) -> Instant {
        started + Duration::from_secs_f64(self.seconds_per_sample * samples as f64)
    }

    /// Waits until `samples` samples would have been computed at this pace; counts when that time is over already.
    #[expect(clippy::disallowed_methods, reason = "waiting is what pacing is")]
    pub fn hold(&mut self, started: Instant, samples: u64) {
        let wait = self.target(started, samples).saturating_duration_since(Instant::now());
        if wait.is_zero() {
            self.missed += 1;
        } else {
            std::thread::sleep(wait);
        }
    }

    /// How many micro-batches took longer by themselves than the pace allows: more than a few, and it is not held.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_count_from_the_begin_of_the_step() {
        let pace = Pace::new(4.0, Duration::from_millis(2));
        let started = Instant::now();
        assert_eq!(pace.target(started, 8) - started, Duration::from_millis(4));
        assert_eq!(pace.target(started, 16) - started, Duration::from_millis(8));
    }

    #[test]
    fn a_pace_is_waited_for_and_a_missed_one_counted() {
        let mut pace = Pace::new(1.0, Duration::from_millis(3));
        let started = Instant::now();
        pace.hold(started, 2);
        assert!(started.elapsed() >= Duration::from_millis(6));
        pace.hold(started, 1);
        assert_eq!(pace.missed(), 1);
    }
}

//! Imposed speeds: real gradients, then a wait until the time that a slower machine would have taken.

use std::time::{Duration, Instant};

use evenstep_trainer::model::Pace;

use super::law::Timeline;

/// Makes this worker as slow as wanted: `unit / speed` seconds a sample, and more where the speed sways.
#[derive(Debug)]
pub struct ImposedPace {
    seconds_per_sample: f64,
    sway: Option<Sway>,
    missed: u64,
}

/// A load that is not there, and slows this worker down as if it were.
#[derive(Debug)]
struct Sway {
    load: Timeline,
    /// Time 0 of the load.
    origin: Instant,
}

impl ImposedPace {
    /// A speed relative to the unit, which is the time of one sample at speed 1.
    pub fn new(speed: f64, unit: Duration) -> Self {
        Self { seconds_per_sample: unit.as_secs_f64() / speed, sway: None, missed: 0 }
    }

    /// The same pace, divided by one more than the busy threads of this load; `origin` is its time 0.
    #[must_use]
    pub fn swayed(self, load: Timeline, origin: Instant) -> Self {
        Self { sway: Some(Sway { load, origin }), ..self }
    }

    /// When `samples` may be done that were begun at `started`. Targets count from the begin of the step, so that what
    /// one micro-batch oversleeps the next one makes up for.
    fn target(&mut self, started: Instant, samples: u64) -> Instant {
        let alone_s = self.seconds_per_sample * samples as f64;
        let time_s = match &mut self.sway {
            None => alone_s,
            Some(Sway { load, origin }) => {
                let from_s = started.saturating_duration_since(*origin).as_secs_f64();
                load.done_at(from_s, alone_s) - from_s
            }
        };
        started + Duration::from_secs_f64(time_s)
    }
}

impl Pace for ImposedPace {
    #[expect(clippy::disallowed_methods, reason = "waiting is what pacing is")]
    fn hold(&mut self, started: Instant, samples: u64) -> Duration {
        let target = self.target(started, samples);
        let wait = target.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            self.missed += 1;
        } else {
            std::thread::sleep(wait);
        }
        target.elapsed()
    }

    fn missed(&self) -> u64 {
        self.missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Load, LoadKind};

    #[test]
    fn targets_count_from_the_begin_of_the_step() {
        let mut pace = ImposedPace::new(4.0, Duration::from_millis(2));
        let started = Instant::now();
        assert_eq!(pace.target(started, 8) - started, Duration::from_millis(4));
        assert_eq!(pace.target(started, 16) - started, Duration::from_millis(8));
    }

    #[test]
    fn a_swaying_pace_is_divided_by_one_more_than_the_busy_threads() {
        let load = Load { kind: LoadKind::Steady, seed: 3 };
        let threads = load.regimes().next().unwrap().threads;
        let origin = Instant::now();
        let mut pace =
            ImposedPace::new(0.5, Duration::from_millis(1)).swayed(Timeline::new(load, 0.0), origin);
        let started = origin + Duration::from_secs(5);
        let took = (pace.target(started, 10) - started).as_secs_f64();
        assert!(threads > 0.0 && (took - 0.02 * (1.0 + threads)).abs() < 1e-6, "{took} s beside {threads}");
    }

    #[test]
    fn a_pace_is_waited_for_and_a_missed_one_counted() {
        let mut pace = ImposedPace::new(1.0, Duration::from_millis(3));
        let started = Instant::now();
        pace.hold(started, 2);
        assert!(started.elapsed() >= Duration::from_millis(6));
        pace.hold(started, 1);
        assert_eq!(pace.missed(), 1);
    }
}

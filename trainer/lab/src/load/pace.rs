//! Imposed speeds: a worker computes real gradients, then waits until the time that a slower machine would
//! have taken.

use std::time::{Duration, Instant};

use evenstep_trainer::model::Pace;

use super::law::Timeline;

/// Slows this worker down to `unit / speed` seconds per sample, and further by a simulated load, if any.
#[derive(Debug)]
pub struct ImposedPace {
    seconds_per_sample: f64,
    simulated_load: Option<SimulatedLoad>,
    missed: u64,
}

/// A simulated load that slows this worker down.
#[derive(Debug)]
struct SimulatedLoad {
    load: Timeline,
    /// Time 0 of the load.
    origin: Instant,
}

impl ImposedPace {
    /// Creates a pace with a relative speed; `unit` is the time per sample at speed 1.
    pub fn new(speed: f64, unit: Duration) -> Self {
        Self { seconds_per_sample: unit.as_secs_f64() / speed, simulated_load: None, missed: 0 }
    }

    /// Divides the pace by 1 + n, for n busy threads of this load; `origin` is time 0 of the load.
    #[must_use]
    pub fn swayed(self, load: Timeline, origin: Instant) -> Self {
        Self { simulated_load: Some(SimulatedLoad { load, origin }), ..self }
    }

    /// Returns the earliest time at which `samples` begun at `started` may be done. Targets count from
    /// the start of the step, so that a late wake-up after one micro-batch shortens the next wait.
    fn target(&mut self, started: Instant, samples: u64) -> Instant {
        let alone_s = self.seconds_per_sample * samples as f64;
        let time_s = match &mut self.simulated_load {
            None => alone_s,
            Some(SimulatedLoad { load, origin }) => {
                let from_s = started.saturating_duration_since(*origin).as_secs_f64();
                load.finish_time(from_s, alone_s) - from_s
            }
        };
        started + Duration::from_secs_f64(time_s)
    }
}

impl Pace for ImposedPace {
    #[expect(clippy::disallowed_methods, reason = "pacing is a wait")]
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
    fn a_varying_pace_is_divided_by_busy_threads_plus_one() {
        let load = Load { kind: LoadKind::Steady, seed: 3 };
        let threads = load.regimes().next().unwrap().threads;
        let origin = Instant::now();
        let mut pace =
            ImposedPace::new(0.5, Duration::from_millis(1)).swayed(Timeline::new(load, 0.0), origin);
        let started = origin + Duration::from_secs(5);
        let took = (pace.target(started, 10) - started).as_secs_f64();
        assert!(
            threads > 0.0 && (took - 0.02 * (1.0 + threads)).abs() < 1e-6,
            "{took} s with {threads} threads"
        );
    }

    #[test]
    fn an_imposed_pace_is_kept_and_missed_ones_are_counted() {
        let mut pace = ImposedPace::new(1.0, Duration::from_millis(3));
        let started = Instant::now();
        pace.hold(started, 2);
        assert!(started.elapsed() >= Duration::from_millis(6));
        pace.hold(started, 1);
        assert_eq!(pace.missed(), 1);
    }
}

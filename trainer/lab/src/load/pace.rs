//! Imposed speeds: real gradients, then a wait until the time that a slower machine would have taken.

use std::time::{Duration, Instant};

use crate::cli::{InvalidArgs, TrainArgs};
use crate::load::Timeline;

/// Makes this worker as slow as wanted: `unit / speed` seconds a sample, and more where the speed sways.
#[derive(Debug)]
pub struct Pace {
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

impl Pace {
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

    /// Waits until `samples` samples would have been computed at this pace; counts when that time is over already. Returns by
    /// how much it is over now.
    #[expect(clippy::disallowed_methods, reason = "waiting is what pacing is")]
    pub fn hold(&mut self, started: Instant, samples: u64) -> Duration {
        let target = self.target(started, samples);
        let wait = target.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            self.missed += 1;
        } else {
            std::thread::sleep(wait);
        }
        target.elapsed()
    }

    /// How many micro-batches took longer by themselves than the pace allows: more than a few, and it is not held.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

impl TrainArgs {
    /// The imposed pace of a worker, if any.
    ///
    /// # Errors
    /// Paces are named, and none for this rank.
    pub fn pace_of(&self, rank: usize) -> Result<Option<f64>, InvalidArgs> {
        let Some(paces) = &self.pace else { return Ok(self.sway.map(|_| 1.0)) };
        let unnamed =
            || InvalidArgs(format!("--pace names {} speeds, and none for --rank {rank}", paces.len()));
        paces.get(rank).copied().map(Some).ok_or_else(unnamed)
    }

    /// The rule for imposed speeds that is broken, with the values.
    pub(crate) fn wrong_pace(&self, world_size: usize) -> Option<String> {
        let finite_positive = |value: f64| value.is_finite() && value > 0.0;
        if !finite_positive(self.pace_unit_ms) || self.pace_unit_ms > 60_000.0 {
            return Some(format!("--pace-unit-ms {} must be above 0 and at most 60000", self.pace_unit_ms));
        }
        let paces = self.pace.as_ref()?;
        if paces.len() != world_size {
            return Some(format!("--pace names {} speeds, but there are {world_size} workers", paces.len()));
        }
        let wrong = paces.iter().find(|&&pace| !finite_positive(pace) || pace < 1e-3);
        wrong.map(|pace| format!("--pace {pace}: must be a finite number of at least 0.001"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Load, LoadKind};

    #[test]
    fn targets_count_from_the_begin_of_the_step() {
        let mut pace = Pace::new(4.0, Duration::from_millis(2));
        let started = Instant::now();
        assert_eq!(pace.target(started, 8) - started, Duration::from_millis(4));
        assert_eq!(pace.target(started, 16) - started, Duration::from_millis(8));
    }

    #[test]
    fn a_swaying_pace_is_divided_by_one_more_than_the_busy_threads() {
        let load = Load { kind: LoadKind::Steady, seed: 3 };
        let threads = load.regimes().next().unwrap().threads;
        let origin = Instant::now();
        let mut pace = Pace::new(0.5, Duration::from_millis(1)).swayed(Timeline::new(load, 0.0), origin);
        let started = origin + Duration::from_secs(5);
        let took = (pace.target(started, 10) - started).as_secs_f64();
        assert!(threads > 0.0 && (took - 0.02 * (1.0 + threads)).abs() < 1e-6, "{took} s beside {threads}");
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

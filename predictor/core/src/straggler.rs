//! Detects stragglers: workers that are slow for longer than their device and their history explain. The result is a
//! flag for people; a straggler is never evicted.
//!
//! A worker is compared with its own best speed, which is a slowly decaying maximum of its averaged speed. A slow-down
//! begins below a share of this speed, and ends above a larger share. Speeds that sway are not an exception, so a
//! slow-down must last longer than:
//! - a minimum number of iterations;
//! - twice as long as the longest earlier slow-down of the worker;
//! - twice as long as the slow-downs of most other workers (`usual`).
//!
//! The best speed of a worker on a GPU is also compared with the median speed of its peers, the workers on the same kind
//! of GPU. The name
//! of a processor does not include the number of cores of a worker, so it says nothing about the expected speed.
//!
//! Shares follow speeds, so a device that is slow by nature is not a straggler. The cause is determined from the drivers
//! and the wait for the data loader, compared with their values while the worker was healthy.

use serde::{Deserialize, Serialize};

use crate::series::{COUNT_MAX, LOG_SPEED_MAX, READING_MAX};

/// Number of iterations over which speed and drivers are averaged.
const MEMORY: f64 = 20.0;
/// Share of the distance to the current speed by which the best speed decays in each iteration; half of the
/// distance in 700 iterations.
const BEST_DECAY: f64 = 0.001;
/// A worker is slow below the first share of its expected speed, and healthy again above the second.
const SLOW: f64 = 0.75;
const RECOVERED: f64 = 0.85;
/// Number of consecutive slow iterations after which a worker is flagged, if nothing explains them.
const MIN_SLOW_ITERATIONS: u64 = 50;
/// Time of these iterations, in seconds of compute time: short iterations must be slow more often.
const MIN_SLOW_S: f64 = 10.0;
/// Multiple of an earlier slow-down that a slow-down must exceed.
const LONGER: f64 = 2.0;
/// Share of the iteration above which waiting for the data loader is a sufficient cause.
const LOADER_SHARE: f64 = 0.2;

/// Readings from one iteration. Absent readings are not included in the averages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StragglerReadings {
    /// SM clock of the worker's GPU in MHz.
    pub sm_clock_mhz: Option<f64>,
    /// Temperature of the worker's GPU in degrees Celsius.
    pub gpu_temperature_celsius: Option<f64>,
    /// Share of time in which at least one task of the machine waited for a core.
    pub cpu_stall: Option<f64>,
    /// Seconds per second that the worker's threads waited for a core.
    pub run_queue_wait: Option<f64>,
    /// Share of time in which at least one task waited for memory.
    pub memory_stall: Option<f64>,
    /// Share of the iteration that the worker waited for data.
    pub loader_share: Option<f64>,
}

impl StragglerReadings {
    fn each(&mut self) -> [&mut Option<f64>; 6] {
        [
            &mut self.sm_clock_mhz,
            &mut self.gpu_temperature_celsius,
            &mut self.cpu_stall,
            &mut self.run_queue_wait,
            &mut self.memory_stall,
            &mut self.loader_share,
        ]
    }

    fn average(&mut self, mut now: Self) {
        for (mean, now) in self.each().into_iter().zip(now.each()) {
            *mean = match (*mean, *now) {
                (Some(mean), Some(now)) => Some(mean + (now - mean) / MEMORY),
                (mean, now) => now.or(mean),
            };
        }
    }
}

/// Cause of a slow worker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Cause {
    /// The clock of the GPU is lower than while the worker was healthy.
    Throttling {
        /// Ratio of the clock to its value while the worker was healthy.
        clock_ratio: f64,
        /// Temperature in degrees Celsius, if known.
        celsius: Option<f64>,
    },
    /// The worker waits for a core.
    CpuContention {
        /// Share of time that the worker waits for a core.
        waiting: f64,
    },
    /// The worker waits for the data loader.
    LoaderWait {
        /// Share of the iteration that the worker waits for data.
        waiting: f64,
    },
    /// The machine waits for memory.
    MemoryPressure {
        /// Share of time that the machine waits for memory.
        waiting: f64,
    },
    /// No driver explains the slow-down.
    Unknown,
}

/// A worker that is slow for a long time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Straggler {
    /// The cause according to the current drivers.
    pub cause: Cause,
    /// Ratio of its speed to its expected speed.
    pub speed_ratio: f64,
    /// First iteration of the slow-down; the first measured iteration if the worker was always slower than its peers.
    pub since: u64,
}

/// Detects whether one worker is a straggler.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StragglerDetector {
    /// Averaged log speed.
    level: Option<f64>,
    /// Best averaged log speed, with slow decay.
    best: f64,
    observations: u64,
    /// The first measured iteration.
    first: u64,
    now: StragglerReadings,
    /// Averaged readings while the worker was healthy.
    healthy: StragglerReadings,
    slow: Option<SlowDown>,
    /// Number of iterations of the longest slow-down that ended. It halves with each later one that is shorter.
    longest: f64,
}

/// A slow-down that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct SlowDown {
    /// Its first iteration.
    since: u64,
    /// Number of iterations.
    count: u64,
    /// Compute time, in seconds.
    compute_s: f64,
}

impl StragglerDetector {
    /// Whether a stored detector is usable.
    pub(crate) fn is_valid(&self) -> bool {
        let is_reading =
            |reading: &&mut Option<f64>| reading.is_none_or(|reading| reading.abs() <= READING_MAX);
        let (mut now, mut healthy) = (self.now, self.healthy);
        [self.level.unwrap_or(0.0), self.best].iter().all(|level| level.abs() <= LOG_SPEED_MAX)
            && self.observations.max(self.slow.map_or(0, |slow| slow.count)) <= COUNT_MAX
            && self.slow.is_none_or(|slow| slow.compute_s >= 0.0 && slow.compute_s.is_finite())
            && (0.0..=COUNT_MAX as f64).contains(&self.longest)
            && now.each().iter().chain(&healthy.each()).all(is_reading)
    }

    /// Records one iteration: its speed, its compute time in seconds, and its readings.
    pub fn observe(&mut self, iteration: u64, speed: f64, compute_s: f64, signs: StragglerReadings) {
        let log_speed = speed.ln();
        if self.observations == 0 {
            self.first = iteration;
        }
        self.observations += 1;
        // A plain mean until enough iterations exist for a moving average.
        let weight = (1.0 / self.observations as f64).max(1.0 / MEMORY);
        let level = self.level.map_or(log_speed, |level| level + weight * (log_speed - level));
        self.level = Some(level);
        self.best = if self.observations as f64 <= MEMORY {
            level
        } else {
            level.max(self.best - BEST_DECAY * (self.best - level).max(0.0))
        };
        self.now.average(signs);
        // The iteration's own speed decides, not the average: when a slow-down begins, the average is still
        // high while the readings already show the cause.
        if log_speed - self.best > RECOVERED.ln() {
            self.healthy.average(signs);
        }
        let waits = self.now.loader_share.is_some_and(|share| share > LOADER_SHARE);
        let bound = if self.slow.is_some() { RECOVERED } else { SLOW };
        if self.ratio(None) < bound || waits {
            let slow = self.slow.get_or_insert(SlowDown { since: iteration, count: 0, compute_s: 0.0 });
            slow.count += 1;
            slow.compute_s += compute_s;
        } else if let Some(ended) = self.slow.take() {
            self.longest = (ended.count as f64).max(self.longest / 2.0);
        }
    }

    /// Returns the number of iterations of the longest earlier slow-down; it halves with each later one that is shorter.
    pub fn longest(&self) -> f64 {
        self.longest
    }

    /// Returns the averaged speed, for comparison with peers; `None` before the first measurement.
    pub fn speed(&self) -> Option<f64> {
        self.level.map(f64::exp)
    }

    /// Returns the straggler's state if the worker is one, compared with itself and with `peers`, the median
    /// speed of its peers. `usual` is the number of iterations of slow-downs that most other workers have.
    pub fn straggler(&self, peers: Option<f64>, usual: f64) -> Option<Straggler> {
        let settled = self.observations >= MIN_SLOW_ITERATIONS;
        // If the best speed of a worker equals the speed of its peers, the worker is only compared with itself.
        let slower_than_peers = peers.is_some_and(|peers| self.best - peers.ln() < SLOW.ln());
        let explained = LONGER * self.longest.max(usual);
        let is_exceptional = |slow: &SlowDown| {
            slow.count >= MIN_SLOW_ITERATIONS && slow.compute_s >= MIN_SLOW_S && slow.count as f64 > explained
        };
        let since = match self.slow.filter(is_exceptional) {
            Some(slow) => slow.since,
            None if settled && slower_than_peers => self.first,
            None => return None,
        };
        Some(Straggler { cause: self.cause(), speed_ratio: self.ratio(peers), since })
    }

    /// Returns the ratio of the averaged speed to the expected speed, with the median speed of its peers.
    pub fn ratio(&self, peers: Option<f64>) -> f64 {
        let Some(level) = self.level else { return 1.0 };
        (level - peers.map_or(self.best, |peers| self.best.max(peers.ln()))).exp()
    }

    /// Returns the first cause that applies, from the most to the least specific.
    fn cause(&self) -> Cause {
        let StragglerReadings {
            sm_clock_mhz,
            gpu_temperature_celsius,
            cpu_stall,
            run_queue_wait,
            memory_stall,
            loader_share,
        } = self.now;
        let risen = |now: Option<f64>, before: Option<f64>, least: f64| {
            now.filter(|now| *now > least && *now > 1.5 * before.unwrap_or(0.0))
        };
        let clock_ratio = sm_clock_mhz.zip(self.healthy.sm_clock_mhz).map(|(now, before)| now / before);
        if let Some(clock_ratio) = clock_ratio.filter(|ratio| *ratio < 0.93) {
            return Cause::Throttling { clock_ratio, celsius: gpu_temperature_celsius };
        }
        if let Some(waiting) = loader_share.filter(|share| *share > LOADER_SHARE) {
            return Cause::LoaderWait { waiting };
        }
        if let Some(waiting) = risen(memory_stall, self.healthy.memory_stall, 0.05) {
            return Cause::MemoryPressure { waiting };
        }
        let waiting = [
            risen(run_queue_wait, self.healthy.run_queue_wait, 0.1),
            risen(cpu_stall, self.healthy.cpu_stall, 0.1),
        ];
        match waiting.into_iter().flatten().reduce(f64::max) {
            Some(waiting) => Cause::CpuContention { waiting },
            None => Cause::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observe_range(
        watch: &mut StragglerDetector,
        iterations: std::ops::Range<u64>,
        speed: f64,
        signs: StragglerReadings,
    ) {
        for iteration in iterations {
            // Deterministic noise of 10 %.
            let noise = 1.0 + 0.1 * ((iteration * 7919 % 21) as f64 / 10.0 - 1.0);
            watch.observe(iteration, speed * noise, 1.0, signs);
        }
    }

    #[test]
    fn noise_and_constant_differences_are_not_stragglers() {
        let mut watch = StragglerDetector::default();
        observe_range(&mut watch, 7..2000, 3.0, StragglerReadings::default());
        assert_eq!(watch.straggler(None, 0.0), None);
        assert_eq!(watch.straggler(Some(3.2), 0.0), None);
        let straggler = watch.straggler(Some(6.0), 0.0).unwrap();
        assert_eq!((straggler.cause, straggler.since), (Cause::Unknown, 7), "its peers are twice as fast");
    }

    #[test]
    fn slower_than_it_was_for_long_and_well_again() {
        let mut watch = StragglerDetector::default();
        let well = StragglerReadings {
            run_queue_wait: Some(0.01),
            cpu_stall: Some(0.05),
            ..StragglerReadings::default()
        };
        let ill = StragglerReadings {
            run_queue_wait: Some(0.6),
            cpu_stall: Some(0.7),
            ..StragglerReadings::default()
        };
        observe_range(&mut watch, 0..200, 10.0, well);
        observe_range(&mut watch, 200..245, 5.0, ill);
        assert_eq!(watch.straggler(None, 0.0), None, "a short slow-down is not flagged");
        observe_range(&mut watch, 245..300, 5.0, ill);
        let straggler = watch.straggler(None, 0.0).unwrap();
        assert!((200..240).contains(&straggler.since), "{straggler:?}");
        assert!((straggler.speed_ratio - 0.5).abs() < 0.1);
        assert!(matches!(straggler.cause, Cause::CpuContention { waiting } if waiting > 0.5));
        assert_eq!(
            watch.straggler(None, 60.0),
            None,
            "most other workers are slow for 60 iterations at times"
        );
        observe_range(&mut watch, 300..400, 10.0, well);
        assert_eq!(watch.straggler(None, 0.0), None);
    }

    #[test]
    fn short_iterations_must_be_slow_for_a_while() {
        let mut watch = StragglerDetector::default();
        (0..200).for_each(|iteration| watch.observe(iteration, 10.0, 0.01, StragglerReadings::default()));
        (200..300).for_each(|iteration| watch.observe(iteration, 5.0, 0.02, StragglerReadings::default()));
        assert_eq!(watch.straggler(None, 0.0), None, "slow for 2 s");
        (300..800).for_each(|iteration| watch.observe(iteration, 5.0, 0.02, StragglerReadings::default()));
        assert!(watch.straggler(None, 0.0).is_some(), "slow for 10 s");
    }

    /// A worker whose speed sways is not slow: its history explains each slow-down that is not longer than earlier ones.
    #[test]
    fn speeds_that_sway_are_explained_by_history() {
        let mut watch = StragglerDetector::default();
        let mut flagged = Vec::new();
        for iteration in 0..4000_u64 {
            let speed = if iteration / 100 % 2 == 0 { 10.0 } else { 5.0 };
            watch.observe(iteration, speed, 1.0, StragglerReadings::default());
            flagged.extend(watch.straggler(None, 0.0).map(|_| iteration));
        }
        assert!(
            flagged.iter().all(|iteration| *iteration < 300),
            "only the first slow-down is new: {flagged:?}"
        );
        (4000..4300).for_each(|iteration| watch.observe(iteration, 5.0, 1.0, StragglerReadings::default()));
        assert!(watch.straggler(None, 0.0).is_some(), "this slow-down is longer than those before");
    }

    #[test]
    fn reasons() {
        let cause = |well: StragglerReadings, ill: StragglerReadings, speed: f64| {
            let mut watch = StragglerDetector::default();
            observe_range(&mut watch, 0..100, 10.0, well);
            observe_range(&mut watch, 100..200, speed, ill);
            watch.straggler(None, 0.0).map(|straggler| straggler.cause)
        };
        let clock = |mhz, celsius| StragglerReadings {
            sm_clock_mhz: Some(mhz),
            gpu_temperature_celsius: Some(celsius),
            ..StragglerReadings::default()
        };
        assert!(matches!(
            cause(clock(1980.0, 60.0), clock(1200.0, 91.0), 6.0),
            Some(Cause::Throttling { clock_ratio, celsius: Some(_) }) if clock_ratio < 0.7
        ));
        let memory = StragglerReadings {
            memory_stall: Some(0.4),
            cpu_stall: Some(0.3),
            ..StragglerReadings::default()
        };
        assert!(matches!(
            cause(StragglerReadings::default(), memory, 5.0),
            Some(Cause::MemoryPressure { .. })
        ));
        let loader = StragglerReadings { loader_share: Some(0.5), ..StragglerReadings::default() };
        assert!(matches!(cause(StragglerReadings::default(), loader, 10.0), Some(Cause::LoaderWait { .. })));
        assert_eq!(cause(StragglerReadings::default(), StragglerReadings::default(), 10.0), None);
        assert_eq!(
            cause(StragglerReadings::default(), StragglerReadings::default(), 5.0),
            Some(Cause::Unknown)
        );
    }
}

//! Detects stragglers: workers that are slower than they were, or than others like them. The result is a flag for people; a
//! straggler is never evicted.
//!
//! A worker is compared with its own best speed and, on a GPU, with the median of its peers in the same iteration. Both are at
//! equal work: the worker's curve converts the time of one share to another. A difference that the curve is uncertain about
//! is no evidence. Waiting for data counts as slowness. If most healthy workers are slower at the same time and no reading explains
//! it, the work has grown, and only what is slower than that counts.
//!
//! **A flag** is the decision between two hypotheses, full speed and two thirds of it: a sequential test sums the distance of
//! each iteration's log speed from the middle of both, `SLOW`. The sum is restricted to its positive part, so it begins when the
//! worker becomes slow (Page, Continuous inspection schemes, Biometrika 1954). The flag ends by the same test in the other
//! direction, and by nothing else unless the worker moves to another device. While a worker is flagged, its best speed and its healthy readings are kept.
//!
//! **Speeds that sway** are not an exception. After `SWAYS` slow-downs, a worker is flagged only if the next one is longer than
//! `LONGER` times its longest one. Slow-downs that most workers of a large job have explain others in the same way. None of this
//! explains a slow-down of more than `SWAY_MAX_S`.
//!
//! The cause is determined from the drivers and the wait for the data loader, compared with their values while the worker was
//! healthy.

mod cause;
mod level;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use cause::SLOW;
pub use cause::{Cause, StragglerReadings};
use level::{Level, SIZES};
pub use level::{LogRatio, Pace, doubt};

use crate::curve::CurveLearner;
use crate::series::{COUNT_MAX, LOG_SPEED_MAX};

/// Number of iterations over which the speed ratio and the readings are averaged.
const MEMORY: f64 = 20.0;
/// Number of iterations over which a best speed is averaged. A short average would have a large maximum by chance.
const BEST_MEMORY: f64 = 60.0;
/// Number of iterations over which noise is averaged.
const NOISE_MEMORY: f64 = 200.0;
/// Compute time in which a best speed that is not reached any more loses half of its distance to the present, in seconds.
const BEST_HALF_S: f64 = 7200.0;
/// A slow worker is flagged below this share of its expected speed, because a learned curve may be wrong by some percent.
const CLEAR: f64 = 0.78;
/// A worker above this share of its expected speed has healthy readings.
const HEALTHY: f64 = 0.85;
/// Evidence that decides, in log speed, for noise up to about 0.2: a worker at half speed gives 0.5 in each iteration.
const EVIDENCE: f64 = 2.0;
/// Evidence that decides, for each unit of variance of log speed. The chance of a wrong decision is about exp(-16).
const EVIDENCE_BY_NOISE: f64 = 50.0;
/// Largest evidence that decides.
const EVIDENCE_MAX: f64 = 5.0;
/// Largest distance of one iteration from the expected log speed. One long pause is no slow-down.
const DISTANCE_MAX: f64 = 1.0;
/// Largest squared deviation that counts as noise, as a multiple of the variance, and the least variance.
const OUTLIER: f64 = 4.0;
const NOISE_MIN: f64 = 0.01;
/// Number of iterations of a slow-down before the worker is flagged.
const MIN_SLOW_ITERATIONS: u64 = 12;
/// Time of these iterations, in seconds of compute time: short iterations must be slow more often.
const MIN_SLOW_S: f64 = 1.0;
/// Number of slow-downs that make a history.
const SWAYS: u64 = 3;
/// Multiple of an earlier slow-down that a slow-down must exceed.
const LONGER: f64 = 2.0;
/// Compute time of a slow-down that no history explains, in seconds.
const SWAY_MAX_S: f64 = 600.0;
/// Weight of the newest iteration in the speed just before.
const LATEST: f64 = 0.5;
/// Weight with which the benefit of the doubt replaces the speed just before.
const FAIR: f64 = 0.04;
/// Largest stored sum.
const SUM_MAX: f64 = 1e12;

/// A worker that is slow for a long time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Straggler {
    /// The cause according to the current drivers.
    pub cause: Cause,
    /// Ratio of its speed to its expected speed.
    pub speed_ratio: f64,
    /// First iteration of the slow-down.
    pub since: u64,
    /// Whether an agent measured its machine meanwhile.
    pub is_measured: bool,
}

/// The vote of a worker on whether the work of all has changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Vote {
    /// Change of the log of its speed.
    pub change: f64,
    /// Whether it is slow anyway.
    pub is_slow: bool,
}

/// Facts about the other workers in the same iteration.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Others {
    /// Ratio to the median of the peers; `None` without peers.
    pub peers: Option<LogRatio>,
    /// Log of the ratio to their best speeds that the workers have in common.
    pub common: f64,
    /// Number of iterations for which most workers were slow at times.
    pub sways: f64,
}

/// Detects whether one worker is a straggler.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StragglerDetector {
    observations: u64,
    /// Long average.
    average: Level,
    /// The best long average.
    best: Level,
    /// Log ratio to the expected speed in the latest iterations.
    latest: f64,
    /// Short average of this ratio.
    ratio: f64,
    /// Long average of it.
    mean: f64,
    /// Short averages of the readings; in a slow-down, only over its iterations.
    now: StragglerReadings,
    /// Averaged readings while the worker was healthy.
    healthy: StragglerReadings,
    /// Variance of the log ratio in sums over many iterations, for each iteration: large if noise lasts.
    variance: f64,
    /// Evidence against the present state.
    evidence: f64,
    slow: Option<SlowDown>,
    /// Number of proven slow-downs that ended.
    ended: u64,
    /// Number of iterations of the longest of them. It halves with each later one that is shorter.
    longest: f64,
}

/// The log of the work at which a detector measured speeds.
#[derive(Debug, Clone, Copy)]
pub struct LogWorks([[f64; SIZES]; 2]);

/// A slow-down that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct SlowDown {
    /// Its first iteration.
    since: u64,
    /// Number of its iterations, without those in which the worker may be recovering.
    count: u64,
    /// Compute time, in seconds.
    compute_s: f64,
    /// Short average of the log ratio to the expected speed.
    ratio: f64,
    /// Whether only the comparison with its peers shows it.
    is_by_peers: bool,
    /// Whether the evidence sufficed once.
    is_proven: bool,
    /// Whether the worker is flagged: the slow-down is an exception, too.
    is_flagged: bool,
}

impl SlowDown {
    fn is_valid(&self) -> bool {
        (1..=COUNT_MAX).contains(&self.count)
            && (0.0..=SUM_MAX).contains(&self.compute_s)
            && self.ratio.abs() <= LOG_SPEED_MAX
    }
}

impl StragglerDetector {
    /// Whether a stored detector is usable.
    pub(crate) fn is_valid(&self) -> bool {
        self.average.is_valid()
            && self.best.is_valid()
            && [self.latest, self.ratio, self.mean].iter().all(|ratio| ratio.abs() <= LOG_SPEED_MAX)
            && [self.variance, self.evidence].iter().all(|sum| (0.0..=SUM_MAX).contains(sum))
            && self.observations.max(self.ended) <= COUNT_MAX
            && self.slow.as_ref().is_none_or(SlowDown::is_valid)
            && (0.0..=COUNT_MAX as f64).contains(&self.longest)
            && self.now.is_valid()
            && self.healthy.is_valid()
    }

    /// Returns the log of the work of the sizes at which the speeds were measured, for [`convert`](Self::convert).
    pub fn log_works(&self, curve: &CurveLearner) -> LogWorks {
        LogWorks([self.average.log_works(curve), self.best.log_works(curve)])
    }

    /// Converts the speeds after a change of the curve's form.
    pub fn convert(&mut self, before: &LogWorks, curve: &CurveLearner) {
        self.average.convert(&before.0[0], curve);
        self.best.convert(&before.0[1], curve);
    }

    /// Returns the ratio of an iteration to the best speed.
    pub fn ratio_to_best(&self, pace: &Pace, curve: &CurveLearner) -> LogRatio {
        if self.observations == 0 {
            return LogRatio::default();
        }
        let ratio = self.best.ratio(pace, curve);
        LogRatio { mean: ratio.mean + pace.readings.log_busy(), ..ratio }
    }

    /// Records one iteration: its ratio to the best speed, and facts about the other workers.
    pub fn observe(&mut self, pace: &Pace, own: LogRatio, others: &Others) {
        let peers = others.peers.unwrap_or(LogRatio { mean: f64::INFINITY, doubt: 0.0 });
        if !(pace.log_speed + own.mean + own.doubt + peers.doubt).is_finite() {
            return;
        }
        // Without its peers it is not known whether it recovers.
        if others.peers.is_none() && self.slow.is_some_and(|slow| slow.is_proven && slow.is_by_peers) {
            return;
        }
        let is_healthy = own.mean.min(peers.mean) > HEALTHY.ln();
        let own = LogRatio { mean: own.mean - others.common, ..own };
        let [least, most] =
            [0, 1].map(|end| own.range()[end].min(peers.range()[end]).clamp(-LOG_SPEED_MAX, LOG_SPEED_MAX));
        // Where forms disagree, the worker is as fast as it was just before. Only a healthy one has the benefit of the doubt.
        let within = |ratio: f64| ratio.max(least).min(most);
        let ratio = within(self.latest);
        let is_proven = self.is_slow();
        let fair = if self.slow.is_some() { ratio } else { within(0.0) };
        self.latest += LATEST * (ratio - self.latest) + FAIR * (fair - ratio);
        let distance = if is_proven { ratio - SLOW.ln() } else { SLOW.ln() - ratio };
        let needed = (EVIDENCE_BY_NOISE * self.variance).clamp(EVIDENCE, EVIDENCE_MAX);
        self.evidence = (self.evidence + distance.clamp(-DISTANCE_MAX, DISTANCE_MAX)).clamp(0.0, needed);
        let is_by_peers = peers.mean < own.mean && own.mean > SLOW.ln();
        self.turn(pace, ratio, self.evidence >= needed, is_by_peers);
        self.flag(others.sways);
        if is_healthy && self.slow.is_none() {
            self.healthy.average(pace.readings, 1.0 / MEMORY);
        }
        // The common part belongs to the work of all.
        self.average(&Pace { log_speed: pace.log_speed - others.common, ..*pace }, ratio);
    }

    /// Begins or ends a slow-down.
    fn turn(&mut self, pace: &Pace, ratio: f64, is_decided: bool, is_by_peers: bool) {
        match &mut self.slow {
            None if self.evidence > 0.0 => {
                self.slow = Some(SlowDown {
                    since: pace.iteration,
                    count: 1,
                    compute_s: pace.compute_s.min(SUM_MAX),
                    ratio,
                    is_by_peers,
                    is_proven: is_decided,
                    is_flagged: false,
                });
            }
            None => {}
            Some(slow) if !slow.is_proven && self.evidence == 0.0 => self.slow = None,
            Some(slow) if slow.is_proven && is_decided => {
                if slow.count >= MIN_SLOW_ITERATIONS {
                    self.longest = (slow.count as f64).max(self.longest / 2.0);
                    self.ended = self.ended.saturating_add(1);
                }
                self.slow = None;
            }
            // It may be recovering.
            Some(slow) if slow.is_proven && self.evidence > 0.0 => {}
            Some(slow) => {
                slow.count = slow.count.saturating_add(1);
                slow.is_by_peers = if slow.is_proven { slow.is_by_peers } else { is_by_peers };
                slow.compute_s = (slow.compute_s + pace.compute_s).min(SUM_MAX);
                slow.ratio += weight(slow.count, MEMORY) * (ratio - slow.ratio);
                slow.is_proven |= is_decided;
            }
        }
        if is_decided {
            self.evidence = 0.0;
        }
    }

    /// Flags the worker if its slow-down is an exception.
    fn flag(&mut self, sways: f64) {
        let explained = LONGER * if self.ended < SWAYS { sways } else { self.longest.max(sways) };
        if let Some(slow) = &mut self.slow {
            let is_long = slow.count >= MIN_SLOW_ITERATIONS && slow.compute_s >= MIN_SLOW_S;
            let is_exception = slow.count as f64 > explained || slow.compute_s > SWAY_MAX_S;
            let is_clear = slow.is_proven && self.evidence == 0.0 && slow.ratio < CLEAR.ln();
            slow.is_flagged |= is_clear && is_long && is_exception;
        }
    }

    fn average(&mut self, pace: &Pace, ratio: f64) {
        self.observations = self.observations.saturating_add(1);
        self.ratio += weight(self.observations, MEMORY) * (ratio - self.ratio);
        self.now
            .average(pace.readings, weight(self.slow.map_or(self.observations, |slow| slow.count), MEMORY));
        if !self.is_slow() {
            self.average.add(pace, weight(self.observations, BEST_MEMORY));
        }
        if self.slow.is_none() {
            let weight = weight(self.observations, NOISE_MEMORY);
            let deviation = self.ratio - self.mean;
            self.mean += weight * deviation;
            let squared = (2.0 * MEMORY - 1.0) * deviation * deviation;
            let noise = OUTLIER * self.variance.max(NOISE_MIN);
            self.variance += weight * (squared.min(noise) - self.variance);
        }
        if self.slow.is_none_or(|slow| !slow.is_flagged) {
            let above = (self.best.log_speed() - self.average.log_speed()).max(0.0);
            let decay = above * (0.5_f64.powf(pace.compute_s / BEST_HALF_S) - 1.0);
            self.best.shift(|_, _| decay);
        }
        if self.observations as f64 <= BEST_MEMORY || self.average.log_speed() > self.best.log_speed() {
            self.best = self.average;
        }
    }

    /// Whether the worker may be slow.
    pub fn suspects(&self) -> bool {
        self.slow.is_some()
    }

    /// Whether a slow-down is proven.
    fn is_slow(&self) -> bool {
        self.slow.is_some_and(|slow| slow.is_proven)
    }

    /// Returns what a ratio to the best speed says about the work of all. `None` if a reading explains half of it or more.
    pub fn vote(&self, pace: &Pace, own: LogRatio) -> Option<Vote> {
        let slow = self.slow.filter(|slow| slow.is_proven);
        let change = own.mean - slow.map_or(0.0, |slow| slow.ratio);
        // Averages show a change late.
        let readings = [&self.now, &pace.readings];
        let explained = readings.into_iter().filter_map(|now| Cause::of(now, &self.healthy).log_ratio());
        let is_explained = own.mean < 0.0 && explained.fold(0.0, f64::min) < 0.5 * own.mean;
        (change.is_finite() && !is_explained).then_some(Vote { change, is_slow: slow.is_some() })
    }

    /// Returns the number of iterations of the longest slow-down that ended. It halves with each later one that is shorter.
    pub fn longest(&self) -> f64 {
        self.longest
    }

    /// Returns the averaged speed over the expected speed; `None` before the first measurement.
    pub fn speed_ratio(&self) -> Option<f64> {
        let ratio = self.slow.filter(|slow| slow.is_proven).map_or(self.ratio, |slow| slow.ratio);
        (self.observations > 0).then(|| ratio.exp().min(1.0))
    }

    /// Returns the state of a flagged worker.
    pub fn straggler(&self) -> Option<Straggler> {
        let slow = self.slow.filter(|slow| slow.is_flagged)?;
        Some(Straggler {
            cause: Cause::of(&self.now, &self.healthy),
            speed_ratio: self.speed_ratio()?,
            since: slow.since,
            is_measured: self.now.is_of_agent(),
        })
    }
}

/// Returns the weight of the newest of `count` values: for a plain mean until enough exist for a moving average.
fn weight(count: u64, memory: f64) -> f64 {
    (1.0 / count as f64).max(1.0 / memory)
}

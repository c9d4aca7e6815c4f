//! The speed of a worker in an iteration, and its averages by size.

use serde::{Deserialize, Serialize};

use super::cause::StragglerReadings;
use crate::curve::{CurveLearner, Uncertain};
use crate::series::LOG_SPEED_MAX;

/// Number of different sizes in an average.
pub const SIZES: usize = 8;

/// Error of a learned curve for each unit of the log of the ratio of two sizes: no form is exact.
const CURVE_ERROR: f64 = 0.15;

/// Doubts by which a ratio may differ from its mean.
const DOUBTS: f64 = 1.5;

/// One measured iteration of a worker.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Number of the iteration.
    pub iteration: u64,
    /// Log speed in [`CurveLearner::work`](crate::curve::CurveLearner::work) per second of compute.
    pub log_speed: f64,
    /// Samples.
    pub samples: u64,
    /// Compute time, in seconds.
    pub compute_s: f64,
    /// Readings from the same time.
    pub readings: StragglerReadings,
}

/// Log of a speed over the expected speed at equal work.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LogRatio {
    /// Its mean over all forms that the curve may have.
    pub mean: f64,
    /// Standard deviation over these forms.
    pub doubt: f64,
}

impl LogRatio {
    /// Returns the range of ratios that are possible.
    pub(super) fn range(self) -> [f64; 2] {
        [self.mean - DOUBTS * self.doubt, self.mean + DOUBTS * self.doubt]
    }
}

/// Returns the doubt about a ratio of compute times of two sizes.
pub fn doubt(time: Uncertain, from: u64, to: u64) -> f64 {
    let distance = (to.max(1) as f64 / from.max(1) as f64).ln().abs();
    time.deviation / time.mean + CURVE_ERROR * distance
}

/// An averaged log speed, by the sizes at which it was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Level([Size; SIZES]);

/// A number of samples, the averaged log speed at it, and its weight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Size {
    samples: u64,
    log_speed: f64,
    weight: f64,
}

impl Level {
    pub fn is_valid(&self) -> bool {
        let is_valid = |size: &Size| {
            size.log_speed.abs() <= LOG_SPEED_MAX
                && (0.0..=2.0).contains(&size.weight)
                && (size.weight == 0.0 || size.samples > 0)
        };
        self.0.iter().all(is_valid)
    }

    /// Adds an iteration. A new size replaces the one with the least weight.
    pub fn add(&mut self, pace: &Pace, weight: f64) {
        self.0.iter_mut().for_each(|size| size.weight *= 1.0 - weight);
        let samples = pace.samples.max(1);
        let log_speed = pace.log_speed.clamp(-LOG_SPEED_MAX, LOG_SPEED_MAX);
        if let Some(size) = self.0.iter_mut().find(|size| size.samples == samples) {
            size.weight += weight;
            size.log_speed += weight / size.weight * (log_speed - size.log_speed);
        } else if let Some(least) = self.0.iter_mut().min_by(|one, other| one.weight.total_cmp(&other.weight))
        {
            *least = Size { samples, log_speed, weight };
        }
    }

    /// Returns the weighted means of numbers of each size; 0 before the first.
    fn means<const N: usize>(&self, of: impl Fn(&Size) -> [f64; N]) -> [f64; N] {
        let (mut sums, mut weights) = ([0.0; N], 0.0);
        for size in self.0.iter().filter(|size| size.weight > 0.0) {
            let values = of(size);
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += size.weight * value);
            weights += size.weight;
        }
        if weights > 0.0 { sums.map(|sum| sum / weights) } else { sums }
    }

    /// Returns the log speed, averaged over the sizes.
    pub fn log_speed(&self) -> f64 {
        self.means(|size| [size.log_speed])[0]
    }

    /// Returns the ratio of an iteration to this speed.
    pub fn ratio(&self, pace: &Pace, curve: &CurveLearner) -> LogRatio {
        // Speeds are in units of the form that is believed; the ratio of times is a mean over all forms.
        let now = pace.log_speed - curve.work(pace.samples).ln();
        let [mean, doubt] = self.means(|size| {
            let time = curve.ratio(size.samples, pace.samples);
            let before = size.log_speed - curve.work(size.samples).ln();
            [now - before + time.mean.ln(), doubt(time, size.samples, pace.samples)]
        });
        LogRatio { mean, doubt }
    }

    /// Adds to the log speed at each size.
    pub fn shift(&mut self, change: impl Fn(usize, &Size) -> f64) {
        for (at, size) in self.0.iter_mut().enumerate() {
            let change = change(at, size);
            if size.weight > 0.0 && change.is_finite() {
                size.log_speed = (size.log_speed + change).clamp(-LOG_SPEED_MAX, LOG_SPEED_MAX);
            }
        }
    }

    /// Returns the log of the work of each size, for [`convert`](Self::convert).
    pub fn log_works(&self, curve: &CurveLearner) -> [f64; SIZES] {
        self.0.map(|size| curve.work(size.samples).ln())
    }

    /// Converts the speeds after a change of the curve's form.
    pub fn convert(&mut self, before: &[f64; SIZES], curve: &CurveLearner) {
        self.shift(|at, size| curve.work(size.samples).ln() - before[at]);
    }
}

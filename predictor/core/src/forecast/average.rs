//! Simple forecasts from past values: moving averages, exponential averages, and repeated readings.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::series::LOG_SPEED_MAX;

/// An exponential moving average of at least one value: `level += alpha (y - level)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ema {
    alpha: f64,
    level: f64,
}

impl Ema {
    /// Starts with the first value. `alpha` is in (0, 1]; with 1 the average is the last value.
    pub fn new(alpha: f64, first: f64) -> Self {
        debug_assert!(alpha > 0.0 && alpha <= 1.0);
        Self { alpha, level: first }
    }

    /// Returns the factor.
    pub(super) fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Adds the next value.
    pub fn update(&mut self, value: f64) {
        self.level += self.alpha * (value - self.level);
    }

    /// Returns the average, which is the forecast of all future values.
    pub fn level(&self) -> f64 {
        self.level
    }

    /// Whether a stored average is usable: its factor is in (0, 1].
    pub(super) fn is_valid(&self) -> bool {
        self.alpha > 0.0 && self.alpha <= 1.0 && self.level.is_finite()
    }

    /// Whether a stored average of speeds is usable.
    pub(super) fn is_valid_speed(&self) -> bool {
        self.is_valid() && self.level > 0.0 && self.level.ln().abs() <= LOG_SPEED_MAX
    }

    /// Whether a stored average of log speeds is usable.
    pub(super) fn is_valid_log_speed(&self) -> bool {
        self.is_valid() && self.level.abs() <= LOG_SPEED_MAX
    }
}

/// The mean of the latest values, at least one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MovingAverage {
    window: usize,
    values: VecDeque<f64>,
}

impl MovingAverage {
    /// Starts with the first value. Keeps at most `window` values, and at least one.
    pub fn new(window: usize, first: f64) -> Self {
        Self { window: window.max(1), values: VecDeque::from([first]) }
    }

    /// Adds the next value.
    pub fn update(&mut self, value: f64) {
        if self.values.len() == self.window {
            self.values.pop_front();
        }
        self.values.push_back(value);
    }

    /// Returns the mean, which is the forecast of all future values.
    pub fn level(&self) -> f64 {
        self.values.iter().sum::<f64>() / self.values.len() as f64
    }

    /// Whether a stored average of log speeds is usable: it has 1 to `window` values.
    pub(super) fn is_valid(&self) -> bool {
        (1..=self.window).contains(&self.values.len())
            && self.values.iter().all(|value| value.abs() <= LOG_SPEED_MAX)
    }
}

/// Number of run lengths that have separate records; longer runs share the last one.
const RUNS: usize = 6;
/// Initial number of tries in each record, none of them a repeat. A repeat is predicted only after repeats
/// were observed.
const PRIOR_TRIES: f64 = 2.0;
/// Decay of a record per step.
const RECORD_DECAY: f64 = 0.99;

/// Forecasts a series that is sampled faster than it is measured: each value is repeated until the next
/// measurement.
///
/// `p_r` is the share of repeats after a value was seen `r + 1` times, and `m` is the EMA over distinct
/// values. The forecast is `p_r y + (1 - p_r) m`. A series without exact repeats is forecast by `m`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    fresh: Ema,
    last: f64,
    run: usize,
    /// Decayed counts of repeats and tries, by run length.
    record: [(f64, f64); RUNS],
}

impl Hold {
    /// Starts with the first value; `alpha` is the factor of the EMA over distinct values.
    pub fn new(alpha: f64, first: f64) -> Self {
        Self { fresh: Ema::new(alpha, first), last: first, run: 0, record: [(0.0, PRIOR_TRIES); RUNS] }
    }

    /// Adds the next value.
    #[expect(clippy::float_cmp, reason = "a repeat is exactly the same value")]
    pub fn update(&mut self, value: f64) {
        let repeated = value == self.last;
        let (repeats, tries) = &mut self.record[self.run];
        *repeats = *repeats * RECORD_DECAY + f64::from(u8::from(repeated));
        *tries = *tries * RECORD_DECAY + 1.0;
        if repeated {
            self.run = (self.run + 1).min(RUNS - 1);
        } else {
            self.run = 0;
            self.fresh.update(value);
            self.last = value;
        }
    }

    /// Returns the forecast of the next value.
    pub fn level(&self) -> f64 {
        let (repeats, tries) = self.record[self.run];
        let share = repeats / tries;
        share * self.last + (1.0 - share) * self.fresh.level()
    }

    /// Returns the number of repeats of the latest value.
    pub fn run(&self) -> usize {
        self.run
    }

    /// Returns the EMA over distinct values.
    pub fn fresh(&self) -> f64 {
        self.fresh.level()
    }

    /// Whether a stored forecast of log speeds is usable.
    pub(super) fn is_valid(&self) -> bool {
        let is_share = |(repeats, tries): &(f64, f64)| *tries >= 1.0 && (0.0..=*tries).contains(repeats);
        self.fresh.is_valid_log_speed()
            && self.last.abs() <= LOG_SPEED_MAX
            && self.run < RUNS
            && self.record.iter().all(is_share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by hand: 1, then 1 + 0.5 (3 - 1) = 2, then 2 + 0.5 (0 - 2) = 1.
    #[test]
    fn ema_follows_the_formula() {
        let mut ema = Ema::new(0.5, 1.0);
        ema.update(3.0);
        assert_eq!(ema.level(), 2.0);
        ema.update(0.0);
        assert_eq!(ema.level(), 1.0);
    }

    #[test]
    fn a_moving_average_drops_values_outside_its_window() {
        let mut average = MovingAverage::new(2, 9.0);
        assert_eq!(average.level(), 9.0);
        average.update(1.0);
        average.update(3.0);
        assert_eq!(average.level(), 2.0);
    }

    /// Each value occurs exactly twice: after its first occurrence a repeat follows, after its second a new
    /// value.
    #[test]
    fn hold_learns_that_values_come_twice() {
        let mut hold = Hold::new(0.5, 0.0);
        let (mut ours, mut last_value) = (0.0f64, 0.0f64);
        let mut last = 0.0f64;
        for k in 1..2000 {
            let value = f64::from((k / 2 * 7919) % 13);
            if k > 500 {
                ours += (hold.level() - value).powi(2);
                last_value += (last - value).powi(2);
            }
            hold.update(value);
            last = value;
        }
        assert!(ours < 0.9 * last_value, "{ours} against {last_value}");
        assert!(hold.record[0].0 / hold.record[0].1 > 0.9 && hold.record[1].0 / hold.record[1].1 < 0.2);
    }
}

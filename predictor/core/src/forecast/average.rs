//! Simple forecasts from the past alone: moving averages, exponential or over a window, and the hold of a stale reading.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// An exponential moving average that has seen at least one value: `level += alpha (y - level)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ema {
    alpha: f64,
    level: f64,
}

impl Ema {
    /// Starts at the first value. `alpha` in (0, 1]: 1 is the last value.
    pub fn new(alpha: f64, first: f64) -> Self {
        debug_assert!(alpha > 0.0 && alpha <= 1.0);
        Self { alpha, level: first }
    }

    /// Takes the next value.
    pub fn update(&mut self, value: f64) {
        self.level += self.alpha * (value - self.level);
    }

    /// The average: the forecast of every coming value.
    pub fn level(&self) -> f64 {
        self.level
    }
}

/// The mean of the latest values, at least one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MovingAverage {
    window: usize,
    values: VecDeque<f64>,
}

impl MovingAverage {
    /// Starts at the first value; `window` values at most are kept, and at least one.
    pub fn new(window: usize, first: f64) -> Self {
        Self { window: window.max(1), values: VecDeque::from([first]) }
    }

    /// Takes the next value.
    pub fn update(&mut self, value: f64) {
        if self.values.len() == self.window {
            self.values.pop_front();
        }
        self.values.push_back(value);
    }

    /// The mean: the forecast of every coming value.
    pub fn level(&self) -> f64 {
        self.values.iter().sum::<f64>() / self.values.len() as f64
    }
}

/// Run lengths told apart.
const RUNS: usize = 6;
/// Tries at the start of each run length's record, none of them a repeat: repeats must show before they are believed.
const DOUBT: f64 = 2.0;
/// What one step leaves of a run length's record.
const RECORD_FADING: f64 = 0.99;

/// Forecasts a series that is sampled faster than it is measured: a value is repeated until a new one is there.
///
/// With `p_r` the share of times that a value seen `r + 1` times was seen once more, and `m` the EMA over distinct
/// values, the forecast is `p_r y + (1 - p_r) m`. A series without exact repeats is forecast by `m`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    fresh: Ema,
    last: f64,
    run: usize,
    /// Faded repeats and tries by run length.
    record: [(f64, f64); RUNS],
}

impl Hold {
    /// Starts at the first value; `alpha` is that of the EMA over distinct values.
    pub fn new(alpha: f64, first: f64) -> Self {
        Self { fresh: Ema::new(alpha, first), last: first, run: 0, record: [(0.0, DOUBT); RUNS] }
    }

    /// Takes the next value.
    #[expect(clippy::float_cmp, reason = "a repeat is the same reading again, to the last bit")]
    pub fn update(&mut self, value: f64) {
        let repeated = value == self.last;
        let (repeats, tries) = &mut self.record[self.run];
        *repeats = *repeats * RECORD_FADING + f64::from(u8::from(repeated));
        *tries = *tries * RECORD_FADING + 1.0;
        if repeated {
            self.run = (self.run + 1).min(RUNS - 1);
        } else {
            self.run = 0;
            self.fresh.update(value);
            self.last = value;
        }
    }

    /// The forecast of the coming value.
    pub fn level(&self) -> f64 {
        let (repeats, tries) = self.record[self.run];
        let share = repeats / tries;
        share * self.last + (1.0 - share) * self.fresh.level()
    }

    /// How often the latest value was repeated.
    pub fn run(&self) -> usize {
        self.run
    }

    /// The EMA over distinct values.
    pub fn fresh(&self) -> f64 {
        self.fresh.level()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 1, then 1 + .5 (3 - 1) = 2, then 2 + .5 (0 - 2) = 1.
    #[test]
    fn ema_follows_the_formula() {
        let mut ema = Ema::new(0.5, 1.0);
        ema.update(3.0);
        assert_eq!(ema.level(), 2.0);
        ema.update(0.0);
        assert_eq!(ema.level(), 1.0);
    }

    #[test]
    fn a_moving_average_forgets_what_left_its_window() {
        let mut average = MovingAverage::new(2, 9.0);
        assert_eq!(average.level(), 9.0);
        average.update(1.0);
        average.update(3.0);
        assert_eq!(average.level(), 2.0);
    }

    /// Each value comes exactly twice: after the first a repeat is sure, after the second a new value is.
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

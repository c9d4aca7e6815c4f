//! ARX by recursive least squares: log speed from its own lags and the drivers read at the boundary.
//!
//! With `m` the EMA(.3) of log speed after iteration k, the model is
//! `y(k+1) - m = a1 (y(k) - m) + a2 (y(k-1) - m) + sum_j b_j d_j(k) + b' d_0(k-1) + c`,
//! where lags and drivers `d_j` come in units of their own running deviation. Objective: squared error with forgetting
//! .9985 and a ridge prior of 10 on every coefficient. The target is a deviation from the EMA,
//! so that the prior (all coefficients 0) is the EMA itself: a model without data is a good model already.

use std::collections::VecDeque;

use super::Ema;
use crate::series::{DRIVERS, Drivers};

/// Weight of old errors, per iteration: about 670 iterations of memory. Shorter memories cost accuracy.
const FORGETTING: f64 = 0.9985;
/// The ridge prior: how much evidence a coefficient needs before it moves.
const RIDGE: f64 = 10.0;
/// EMA that the target deviates from.
const BASE_ALPHA: f64 = 0.3;
/// Forecasts stay within the range of this many recent values, and [`RANGE_MARGIN`] of log speed beyond.
const RANGE_VALUES: usize = 20;
/// See [`RANGE_VALUES`]: about 5 %.
const RANGE_MARGIN: f64 = 0.05;
/// A driver more than this many deviations from its mean counts as this many.
const DEVIATIONS_MAX: f64 = 5.0;
/// A gain matrix that has grown beyond the prior by this factor carries no information any more: it starts again.
const GAIN_GROWTH_MAX: f64 = 100.0;

/// Lags of log speed; more do not help.
const LAGS: usize = 2;
/// The lags, the drivers, the first driver's previous value, and a constant.
const INPUTS: usize = LAGS + DRIVERS + 1 + 1;

/// An ARX model of log speed, ready to forecast from its first value on.
#[derive(Debug, Clone)]
pub struct Arx {
    base: Ema,
    rls: RecursiveLeastSquares<INPUTS>,
    scales: [RunningScale; LAGS + DRIVERS],
    recent: VecDeque<f64>,
    previous_first_driver: f64,
    /// Inputs from which the coming value is forecast.
    inputs: [f64; INPUTS],
}

impl Arx {
    /// A model that has seen one value.
    pub fn new(first: f64, drivers: Drivers) -> Self {
        let mut model = Self {
            base: Ema::new(BASE_ALPHA, first),
            rls: RecursiveLeastSquares::new(RIDGE, FORGETTING),
            scales: [RunningScale::default(); LAGS + DRIVERS],
            recent: VecDeque::from([first]),
            previous_first_driver: 0.0,
            inputs: [0.0; INPUTS],
        };
        model.take_inputs(first, first, drivers);
        model
    }

    /// Learns from the value that followed the last inputs, then takes the drivers beside it as the next inputs.
    pub fn update(&mut self, log_speed: f64, drivers: Drivers) {
        let previous = self.recent.back().copied().unwrap_or(log_speed);
        self.rls.update(&self.inputs, log_speed - self.base.level());
        self.base.update(log_speed);
        if self.recent.len() == RANGE_VALUES {
            self.recent.pop_front();
        }
        self.recent.push_back(log_speed);
        self.take_inputs(log_speed, previous, drivers);
    }

    /// The log speed of the coming iteration, kept within the recent range.
    pub fn predict(&self) -> f64 {
        let (low, high) =
            self.recent.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(*value), high.max(*value))
            });
        let raw = self.base.level() + self.rls.predict(&self.inputs);
        if raw.is_finite() { raw.clamp(low - RANGE_MARGIN, high + RANGE_MARGIN) } else { self.base.level() }
    }

    fn take_inputs(&mut self, value: f64, previous: f64, drivers: Drivers) {
        let base = self.base.level();
        let lags = [Some(value - base), Some(previous - base)];
        for (at, reading) in lags.into_iter().chain(drivers.0).enumerate() {
            // A missing driver enters at its mean: it says nothing. (The book counts it.)
            self.inputs[at] = reading.map_or(0.0, |reading| self.scales[at].deviations(reading));
        }
        self.inputs[LAGS + DRIVERS] = self.previous_first_driver;
        self.inputs[LAGS + DRIVERS + 1] = 1.0;
        self.previous_first_driver = self.inputs[LAGS];
    }
}

/// Running mean and deviation of an input (Welford), to bring all inputs to one scale.
#[derive(Debug, Clone, Copy, Default)]
struct RunningScale {
    count: f64,
    mean: f64,
    squares: f64,
}

impl RunningScale {
    /// Takes a reading and says how many deviations it lies from the mean; a constant input says 0.
    fn deviations(&mut self, reading: f64) -> f64 {
        self.count += 1.0;
        let delta = reading - self.mean;
        self.mean += delta / self.count;
        self.squares += delta * (reading - self.mean);
        let deviation = (self.squares / self.count).sqrt();
        let scaled = (reading - self.mean) / deviation;
        if scaled.is_finite() { scaled.clamp(-DEVIATIONS_MAX, DEVIATIONS_MAX) } else { 0.0 }
    }
}

/// Least squares over a stream: `N` coefficients, forgetting, and a ridge prior at 0.
#[derive(Debug, Clone)]
struct RecursiveLeastSquares<const N: usize> {
    coefficients: [f64; N],
    /// Inverse of the (forgotten) information matrix: symmetric, positive definite.
    gain: [[f64; N]; N],
    prior_gain: f64,
    forgetting: f64,
}

impl<const N: usize> RecursiveLeastSquares<N> {
    fn new(ridge: f64, forgetting: f64) -> Self {
        let prior_gain = 1.0 / ridge;
        Self { coefficients: [0.0; N], gain: Self::diagonal(prior_gain), prior_gain, forgetting }
    }

    fn diagonal(value: f64) -> [[f64; N]; N] {
        std::array::from_fn(|i| std::array::from_fn(|j| if i == j { value } else { 0.0 }))
    }

    fn predict(&self, inputs: &[f64; N]) -> f64 {
        self.coefficients.iter().zip(inputs).map(|(coefficient, input)| coefficient * input).sum()
    }

    fn update(&mut self, inputs: &[f64; N], target: f64) {
        let weighted: [f64; N] =
            std::array::from_fn(|i| self.gain[i].iter().zip(inputs).map(|(gain, input)| gain * input).sum());
        let spread: f64 = weighted.iter().zip(inputs).map(|(weighted, input)| weighted * input).sum();
        let step = 1.0 / (self.forgetting + spread);
        let error = target - self.predict(inputs);
        if !(error * step).is_finite() {
            return;
        }
        for i in 0..N {
            self.coefficients[i] += weighted[i] * step * error;
            for j in 0..=i {
                // Written once for both triangles, so that rounding cannot break the symmetry.
                let value = (self.gain[i][j] - weighted[i] * weighted[j] * step) / self.forgetting;
                self.gain[i][j] = value;
                self.gain[j][i] = value;
            }
        }
        // Inputs that stay still let the gain grow without end (wind-up) until one jolt ruins the model.
        let wound_up = (0..N).any(|i| !(0.0..=GAIN_GROWTH_MAX * self.prior_gain).contains(&self.gain[i][i]));
        if wound_up {
            self.gain = Self::diagonal(self.prior_gain);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// Without forgetting, the stream ends at the ridge solution of the batch problem, here solved by hand in two
    /// dimensions: (X'X + ridge I) beta = X'y.
    #[test]
    fn ends_at_the_batch_ridge_solution() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let ridge = 2.0;
        let mut rls = RecursiveLeastSquares::<2>::new(ridge, 1.0);
        let (mut a, mut b, mut d, mut p, mut q) = (ridge, 0.0, ridge, 0.0, 0.0);
        for _ in 0..200 {
            let x = [rng.random::<f64>() - 0.5, rng.random::<f64>() * 2.0];
            let y = 0.7 * x[0] - 0.2 * x[1] + 0.01 * rng.random::<f64>();
            rls.update(&x, y);
            a += x[0] * x[0];
            b += x[0] * x[1];
            d += x[1] * x[1];
            p += x[0] * y;
            q += x[1] * y;
        }
        let determinant = a * d - b * b;
        let beta = [(d * p - b * q) / determinant, (a * q - b * p) / determinant];
        for (ours, batch) in rls.coefficients.iter().zip(beta) {
            assert!((ours - batch).abs() < 1e-9, "{ours} {batch}");
        }
    }

    /// An AR(1) around a mean is learned: the forecast error comes close to the innovation's.
    #[test]
    fn learns_an_autoregression() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(5);
        let mut value = 0.0f64;
        let mut model = Arx::new(value, Drivers::default());
        let (mut ours, mut innovation) = (0.0, 0.0);
        for k in 0..2000 {
            let noise = 0.1 * (rng.random::<f64>() - 0.5);
            let next = 0.9 * value + noise;
            if k >= 500 {
                ours += (model.predict() - next).powi(2);
                innovation += noise * noise;
            }
            model.update(next, Drivers::default());
            value = next;
        }
        assert!(ours < 1.1 * innovation, "{ours} against {innovation}");
    }

    /// A driver that was small noise and decided all jolts beyond anything seen: the forecast stays within the range.
    #[test]
    fn forecasts_stay_in_the_recent_range() {
        let mut model = Arx::new(0.0, super::super::only(0, 0.0));
        let mut announced = 0.0;
        for k in 0..300 {
            let value = 0.1 * announced;
            announced = f64::from((k * 7919 % 13) % 2);
            model.update(value, super::super::only(0, announced));
        }
        for jolt in [1e9, -1e9] {
            let mut jolted = model.clone();
            jolted.update(0.1 * announced, super::super::only(0, jolt));
            let forecast = jolted.predict();
            assert!((-RANGE_MARGIN..=0.1 + RANGE_MARGIN).contains(&forecast), "{forecast} after {jolt}");
        }
    }
}

//! One-step-ahead forecasts of a worker's contention. They are used to evaluate forms of a curve.

use serde::{Deserialize, Serialize};

/// Steps of two exponential averages of the level: over a few iterations, and over many.
const STEPS: [f64; 2] = [0.3, 0.03];

/// Forgetting factor of the recursive least squares.
const FORGETTING: f64 = 0.995;

/// Initial coefficients: the forecast is the last value plus the expected change, if one is given.
const FIRST: [f64; 3] = [0.0, 0.0, 1.0];

/// Initial variances of the coefficients. The variance for the expected change is smaller, since it is
/// trusted more.
const UNCERTAINTY: [f64; 3] = [10.0, 10.0, 1.0];

/// Errors beyond this number of scales get a weight that is inversely proportional to the error (Huber).
const HUBER: f64 = 2.0;

/// Maximum magnitude of a number in a stored forecaster.
const NUMBER_MAX: f64 = 1e6;

/// Forecasts the log level of contention as `l + c0 (fast - l) + c1 (slow - l) + c2 z`.
///
/// Here l is the last level, `fast` and `slow` are two averages of it, and z is the change that the caller
/// expects. The coefficients are estimated by recursive least squares. Without z a random walk has c = 0,
/// independent noise has c1 = 1, and AR(1) is in between.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Contention {
    last: f64,
    averages: [f64; 2],
    coefficients: [f64; 3],
    covariance: [[f64; 3]; 3],
}

impl Contention {
    pub fn new(level: f64) -> Self {
        let mut covariance = [[0.0; 3]; 3];
        for (i, variance) in UNCERTAINTY.into_iter().enumerate() {
            covariance[i][i] = variance;
        }
        Self { last: level, averages: [level; 2], coefficients: FIRST, covariance }
    }

    /// Whether a stored forecaster is usable.
    pub fn is_valid(&self) -> bool {
        let Self { last, averages, coefficients, covariance } = self;
        let levels = averages.iter().chain([last]);
        levels.chain(coefficients).chain(covariance.iter().flatten()).all(|number| number.abs() <= NUMBER_MAX)
    }

    fn regressors(&self, change: f64) -> [f64; 3] {
        let [fast, slow] = self.averages.map(|average| average - self.last);
        [fast, slow, change]
    }

    /// Returns the forecast of the next level, given the change that the caller expects.
    pub fn forecast(&self, change: f64) -> f64 {
        self.last + dot(&self.coefficients, &self.regressors(change))
    }

    /// Updates the forecaster with an observed level. `scale` is the usual size of a forecast error.
    pub fn observe(&mut self, level: f64, change: f64, scale: f64) {
        let error = level - self.forecast(change);
        let regressors = self.regressors(change);
        let gain = self.covariance.map(|row| dot(&row, &regressors));
        let weight = (HUBER * scale / error.abs().max(f64::MIN_POSITIVE)).min(1.0);
        let divisor = FORGETTING / weight + dot(&gain, &regressors);
        // Only rounding errors, or damage of stored models, make a covariance indefinite.
        if !(divisor > 0.0 && error.is_finite()) {
            *self = Self::new(level);
            return;
        }
        for (coefficient, gain) in self.coefficients.iter_mut().zip(gain) {
            *coefficient += gain / divisor * error;
        }
        for (i, row) in self.covariance.iter_mut().enumerate() {
            for (j, entry) in row.iter_mut().enumerate() {
                *entry -= gain[i] * gain[j] / divisor;
            }
        }
        // If all regressors are near 0, nothing is learned. The covariance must then not grow without limit.
        if (0..UNCERTAINTY.len()).all(|i| self.covariance[i][i] <= FORGETTING * UNCERTAINTY[i]) {
            self.covariance = self.covariance.map(|row| row.map(|entry| entry / FORGETTING));
        }
        for (average, step) in self.averages.iter_mut().zip(STEPS) {
            *average += step * (level - *average);
        }
        self.last = level;
    }
}

fn dot(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// Computed by hand: after level 0 comes 1. The averages are then 0.3 and 0.03, and the regressors -0.7
    /// and -0.97.
    #[test]
    fn the_first_forecast_is_the_last_value() {
        let mut contention = Contention::new(0.0);
        assert_eq!(contention.forecast(0.0), 0.0);
        contention.observe(1.0, 0.0, 1.0);
        assert_eq!(contention.forecast(0.0), 1.0);
        contention.observe(0.03, 0.0, 1.0);
        assert!(
            contention.coefficients[1] > contention.coefficients[0],
            "the level returned to the slow average"
        );
        let change = contention.forecast(0.5) - contention.forecast(0.0);
        assert_eq!(change, 0.5, "at first an expected change counts in full");
    }

    #[test]
    fn noise_around_a_level_is_forecast_by_the_level() {
        let mut contention = Contention::new(0.0);
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut forecasts = Vec::new();
        for _ in 0..400 {
            forecasts.push(contention.forecast(0.0).abs());
            contention.observe(random.random_range(-0.5..0.5), 0.0, 0.3);
        }
        let late = &forecasts[200..];
        let mean = late.iter().sum::<f64>() / late.len() as f64;
        assert!(mean < 0.1, "the last value has an error of 0.25, the forecast {mean}");
    }
}

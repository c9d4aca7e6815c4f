//! One step ahead of a worker's contention: what a form of curve is judged by.

use serde::{Deserialize, Serialize};

/// Step of the two averages that a level returns to: over a few iterations, and over many.
const STEPS: [f64; 2] = [0.3, 0.03];

/// Old iterations fade from the coefficients by this factor.
const FORGETTING: f64 = 0.995;

/// The coefficients at first: the last value, or what is expected where something is.
const FIRST: [f64; 3] = [0.0, 0.0, 1.0];

/// How uncertain they are at first: that a forecast says what it says is doubted less.
const UNCERTAINTY: [f64; 3] = [10.0, 10.0, 1.0];

/// Errors beyond so many scales weigh less in the coefficients, as their inverse (Huber).
const HUBER: f64 = 2.0;

/// Forecasts the log level of contention: `l + c0 (fast - l) + c1 (slow - l) + c2 z`, with l the last level, two
/// averages of it, and z the change that others expect. The coefficients come by recursive least squares: without z a
/// random walk has c = 0, independent noise c1 = 1, and AR(1) is between.
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

    fn pulls(&self, change: f64) -> [f64; 3] {
        let [fast, slow] = self.averages.map(|average| average - self.last);
        [fast, slow, change]
    }

    /// The level that comes next, where others expect this change.
    pub fn forecast(&self, change: f64) -> f64 {
        self.last + dot(&self.coefficients, &self.pulls(change))
    }

    /// Takes the level that came; `scale` is how far off forecasts usually are.
    pub fn observe(&mut self, level: f64, change: f64, scale: f64) {
        let error = level - self.forecast(change);
        let pulls = self.pulls(change);
        let gain = self.covariance.map(|row| dot(&row, &pulls));
        let weight = (HUBER * scale / error.abs().max(f64::MIN_POSITIVE)).min(1.0);
        let divisor = FORGETTING / weight + dot(&gain, &pulls);
        for (coefficient, gain) in self.coefficients.iter_mut().zip(gain) {
            *coefficient += gain / divisor * error;
        }
        for (i, row) in self.covariance.iter_mut().enumerate() {
            for (j, entry) in row.iter_mut().enumerate() {
                *entry -= gain[i] * gain[j] / divisor;
            }
        }
        // Without pulls nothing is learned, and what is known must not fade for ever.
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

    /// By hand: from level 0 comes 1, where the averages are .3 and .03 then; the pulls are -.7 and -.97.
    #[test]
    fn the_last_value_at_first() {
        let mut contention = Contention::new(0.0);
        assert_eq!(contention.forecast(0.0), 0.0);
        contention.observe(1.0, 0.0, 1.0);
        assert_eq!(contention.forecast(0.0), 1.0);
        contention.observe(0.03, 0.0, 1.0);
        assert!(contention.coefficients[1] > contention.coefficients[0], "it fell back to the slow average");
        let change = contention.forecast(0.5) - contention.forecast(0.0);
        assert_eq!(change, 0.5, "an expected change is believed at first");
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
        assert!(mean < 0.1, "the last value would be off by .25, not by {mean}");
    }
}

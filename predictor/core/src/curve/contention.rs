//! One step ahead of a worker's contention: what a form of curve is judged by.

use serde::{Deserialize, Serialize};

/// Step of the two averages that a level returns to: over a few iterations, and over many.
const STEPS: [f64; 2] = [0.3, 0.03];

/// Old iterations fade from the coefficients by this factor.
const FORGETTING: f64 = 0.995;

/// How uncertain the coefficients are at first: the last value is the forecast until others prove better.
const UNCERTAINTY: f64 = 10.0;

/// Errors beyond so many scales weigh less in the coefficients, as their inverse (Huber).
const HUBER: f64 = 2.0;

/// Forecasts the log level of contention: `l + c0 (fast - l) + c1 (slow - l)`, with l the last level, two averages of it,
/// and coefficients by recursive least squares. A random walk has c = 0, independent noise c1 = 1, AR(1) is between.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Contention {
    last: f64,
    averages: [f64; 2],
    coefficients: [f64; 2],
    /// The upper triangle of their covariance: (0,0), (0,1), (1,1).
    covariance: [f64; 3],
}

impl Contention {
    pub fn new(level: f64) -> Self {
        Self {
            last: level,
            averages: [level; 2],
            coefficients: [0.0; 2],
            covariance: [UNCERTAINTY, 0.0, UNCERTAINTY],
        }
    }

    fn pulls(&self) -> [f64; 2] {
        self.averages.map(|average| average - self.last)
    }

    /// The level that comes next.
    pub fn forecast(&self) -> f64 {
        let [fast, slow] = self.pulls();
        self.last + self.coefficients[0] * fast + self.coefficients[1] * slow
    }

    /// Takes the level that came; `scale` is how far off forecasts usually are.
    pub fn observe(&mut self, level: f64, scale: f64) {
        let error = level - self.forecast();
        let [fast, slow] = self.pulls();
        let [p00, p01, p11] = self.covariance;
        let gain = [p00 * fast + p01 * slow, p01 * fast + p11 * slow];
        let weight = (HUBER * scale / error.abs().max(f64::MIN_POSITIVE)).min(1.0);
        let divisor = FORGETTING / weight + fast * gain[0] + slow * gain[1];
        for (coefficient, gain) in self.coefficients.iter_mut().zip(gain) {
            *coefficient += gain / divisor * error;
        }
        let updated = [
            p00 - gain[0] * gain[0] / divisor,
            p01 - gain[0] * gain[1] / divisor,
            p11 - gain[1] * gain[1] / divisor,
        ];
        // Without pulls nothing is learned, and what is known must not fade for ever.
        let grown = updated.map(|entry| entry / FORGETTING);
        self.covariance = if grown[0].max(grown[2]) <= UNCERTAINTY { grown } else { updated };
        for (average, step) in self.averages.iter_mut().zip(STEPS) {
            *average += step * (level - *average);
        }
        self.last = level;
    }
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
        assert_eq!(contention.forecast(), 0.0);
        contention.observe(1.0, 1.0);
        assert_eq!(contention.forecast(), 1.0);
        contention.observe(0.03, 1.0);
        assert!(contention.coefficients[1] > contention.coefficients[0], "it fell back to the slow average");
    }

    #[test]
    fn noise_around_a_level_is_forecast_by_the_level() {
        let mut contention = Contention::new(0.0);
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut forecasts = Vec::new();
        for _ in 0..400 {
            forecasts.push(contention.forecast().abs());
            contention.observe(random.random_range(-0.5..0.5), 0.3);
        }
        let late = &forecasts[200..];
        let mean = late.iter().sum::<f64>() / late.len() as f64;
        assert!(mean < 0.1, "the last value would be off by .25, not by {mean}");
    }
}

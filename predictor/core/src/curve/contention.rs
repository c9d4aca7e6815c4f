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

/// Number of forms that are computed together: a processor calculates with several numbers at once.
pub(super) const LANES: usize = 4;

/// One number per form.
pub(super) type Lanes = [f64; LANES];

/// Forecasts the log level of contention as `l + c0 (fast - l) + c1 (slow - l) + c2 z`, for several forms.
///
/// Here l is the last level, `fast` and `slow` are two averages of it, and z is the change that the caller
/// expects. The coefficients are estimated by recursive least squares. Without z a random walk has c = 0,
/// independent noise has c1 = 1, and AR(1) is in between.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Contention {
    last: Lanes,
    averages: [Lanes; 2],
    coefficients: [Lanes; 3],
    /// Lower triangle of the covariance: it is symmetric.
    covariance: [Lanes; 6],
}

/// Position of an entry in the lower triangle.
const AT: [[usize; 3]; 3] = [[0, 1, 3], [1, 2, 4], [3, 4, 5]];

impl Contention {
    pub fn new(level: Lanes) -> Self {
        let mut covariance = [[0.0; LANES]; 6];
        for (i, variance) in UNCERTAINTY.into_iter().enumerate() {
            covariance[AT[i][i]] = [variance; LANES];
        }
        let coefficients = FIRST.map(|first| [first; LANES]);
        Self { last: level, averages: [level; 2], coefficients, covariance }
    }

    /// Whether a stored forecaster is usable.
    pub fn is_valid(&self) -> bool {
        let Self { last, averages, coefficients, covariance } = self;
        let lanes = averages.iter().chain([last]).chain(coefficients).chain(covariance);
        lanes.flatten().all(|number| number.abs() <= NUMBER_MAX)
    }

    /// Returns the deviations of the averages from the last level.
    fn deviations(&self) -> [Lanes; 2] {
        self.averages.map(|average| each(|lane| average[lane] - self.last[lane]))
    }

    /// Returns the forecasts of the next level, given the change that the caller expects.
    fn forecast(&self, change: f64) -> Lanes {
        let ([fast, slow], [c0, c1, c2]) = (self.deviations(), &self.coefficients);
        each(|lane| self.last[lane] + (c0[lane] * fast[lane] + c1[lane] * slow[lane] + c2[lane] * change))
    }

    /// Updates the forecasters with observed levels. `scale` is the usual size of a forecast error. Returns the
    /// magnitudes of the errors.
    pub fn observe(&mut self, levels: &Lanes, change: f64, scale: f64) -> Lanes {
        let forecast = self.forecast(change);
        let error = each(|lane| levels[lane] - forecast[lane]);
        let size = error.map(f64::abs);
        let [fast, slow] = self.deviations();
        let gain = AT.map(|[p, q, r]| {
            let [p, q, r] = [p, q, r].map(|at| &self.covariance[at]);
            each(|lane| p[lane] * fast[lane] + q[lane] * slow[lane] + r[lane] * change)
        });
        let weight = each(|lane| least(HUBER * scale / size[lane].max(f64::MIN_POSITIVE), 1.0));
        let explained =
            each(|lane| gain[0][lane] * fast[lane] + gain[1][lane] * slow[lane] + gain[2][lane] * change);
        let divisor = each(|lane| FORGETTING / weight[lane] + explained[lane]);
        let step = divisor.map(f64::recip);
        for (coefficient, gain) in self.coefficients.iter_mut().zip(&gain) {
            *coefficient = each(|lane| coefficient[lane] + gain[lane] * step[lane] * error[lane]);
        }
        for (i, row) in AT.iter().enumerate() {
            for (j, at) in row.iter().enumerate().take(i + 1) {
                let entry = &mut self.covariance[*at];
                *entry = each(|lane| entry[lane] - gain[i][lane] * gain[j][lane] * step[lane]);
            }
        }
        // If all regressors are near 0, nothing is learned. The covariance must then not grow without limit.
        let diagonal = [0, 1, 2].map(|i| &self.covariance[AT[i][i]]);
        let is_small = |lane: usize| (0..3).all(|i| diagonal[i][lane] <= FORGETTING * UNCERTAINTY[i]);
        let growth = each(|lane| if is_small(lane) { 1.0 / FORGETTING } else { 1.0 });
        for entry in &mut self.covariance {
            *entry = each(|lane| entry[lane] * growth[lane]);
        }
        for (average, step) in self.averages.iter_mut().zip(STEPS) {
            *average = each(|lane| average[lane] + step * (levels[lane] - average[lane]));
        }
        self.last = *levels;
        for lane in 0..LANES {
            // Only rounding errors, or damage of stored models, make a covariance indefinite.
            if !(divisor[lane] > 0.0 && error[lane].is_finite()) {
                self.restart(lane);
            }
        }
        size
    }

    #[cold]
    fn restart(&mut self, lane: usize) {
        let new = Self::new(self.last);
        let numbers = self.averages.iter_mut().chain(&mut self.coefficients).chain(&mut self.covariance);
        for (number, first) in
            numbers.zip(new.averages.iter().chain(&new.coefficients).chain(&new.covariance))
        {
            number[lane] = first[lane];
        }
    }
}

fn each(of: impl FnMut(usize) -> f64) -> Lanes {
    std::array::from_fn(of)
}

/// The smaller of two numbers. Unlike `f64::min`, it is one instruction.
fn least(one: f64, other: f64) -> f64 {
    if one < other { one } else { other }
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
        let mut contention = Contention::new([0.0; LANES]);
        assert_eq!(contention.forecast(0.0)[0], 0.0);
        contention.observe(&[1.0; LANES], 0.0, 1.0);
        assert_eq!(contention.forecast(0.0)[0], 1.0);
        contention.observe(&[0.03; LANES], 0.0, 1.0);
        assert!(
            contention.coefficients[1][0] > contention.coefficients[0][0],
            "the level returned to the slow average"
        );
        let change = contention.forecast(0.5)[1] - contention.forecast(0.0)[0];
        assert_eq!(change, 0.5, "at first an expected change counts in full");
    }

    #[test]
    fn noise_around_a_level_is_forecast_by_the_level() {
        let mut contention = Contention::new([0.0; LANES]);
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut forecasts = Vec::new();
        for _ in 0..400 {
            forecasts.push(contention.forecast(0.0)[0].abs());
            contention.observe(&[random.random_range(-0.5..0.5); LANES], 0.0, 0.3);
        }
        let late = &forecasts[200..];
        let mean = late.iter().sum::<f64>() / late.len() as f64;
        assert!(mean < 0.1, "the last value has an error of 0.25, the forecast {mean}");
    }
}

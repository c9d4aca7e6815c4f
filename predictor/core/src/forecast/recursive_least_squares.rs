//! Recursive least squares with forgetting, a ridge prior at 0 that fades, and scaled inputs.

use serde::{Deserialize, Serialize};

/// Maximum growth of a gain over its prior. A larger gain carries no information and is reset.
const GAIN_GROWTH_MAX: f64 = 100.0;

/// Maximum magnitude of a number in a stored model.
const NUMBER_MAX: f64 = 1e30;

/// Recursive least squares. After `n` rows it minimises
/// `sum_k forgetting^(n-k) (target_k - x_k . theta)^2 + forgetting^n ridge |theta|^2`: the prior fades like the rows. An
/// input without evidence gets its prior back when its gain is reset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecursiveLeastSquares {
    /// `theta`.
    coefficients: Vec<f64>,
    /// Positions of the inputs that were not always 0, ascending. Drivers that a job does not have are always 0.
    used: Vec<usize>,
    /// Inverse of the information matrix of these inputs with forgetting, row-major; symmetric and positive definite.
    gain: Vec<f64>,
    /// The same of each other input: it has no evidence.
    unused_gain: f64,
    prior_gain: f64,
    forgetting: f64,
}

impl RecursiveLeastSquares {
    /// Creates a model with `inputs` coefficients, all 0. `ridge` > 0 is the amount of evidence needed to
    /// move a coefficient at first. `forgetting` in (0, 1] is the weight of past rows that remains after each step; 1
    /// forgets nothing.
    pub fn new(inputs: usize, ridge: f64, forgetting: f64) -> Self {
        let prior_gain = 1.0 / ridge;
        Self {
            coefficients: vec![0.0; inputs],
            used: Vec::new(),
            gain: Vec::new(),
            unused_gain: prior_gain,
            prior_gain,
            forgetting,
        }
    }

    /// Whether a stored model with this number of coefficients is usable.
    pub(super) fn is_valid(&self, width: usize) -> bool {
        self.width() == width
            && self.gain.len() == self.used.len() * self.used.len()
            && self.used.is_sorted_by(|one, other| one < other)
            && self.used.last().is_none_or(|last| *last < width)
            && self
                .coefficients
                .iter()
                .chain(&self.gain)
                .chain([&self.unused_gain])
                .all(|number| number.abs() <= NUMBER_MAX)
            && (1.0 / NUMBER_MAX..=NUMBER_MAX).contains(&self.prior_gain)
            && self.forgetting > 0.0
            && self.forgetting <= 1.0
    }

    /// Returns the number of coefficients.
    pub fn width(&self) -> usize {
        self.coefficients.len()
    }

    /// Returns the prediction for these inputs.
    pub fn predict(&self, inputs: &[f64]) -> f64 {
        let product = |at: &usize| self.coefficients[*at] * inputs.get(*at).unwrap_or(&0.0);
        let chunks = self.used.chunks_exact(4);
        let rest: f64 = chunks.remainder().iter().map(product).sum();
        let mut sums = [0.0; 4];
        for chunk in chunks {
            sums.iter_mut().zip(chunk).for_each(|(sum, at)| *sum += product(at));
        }
        total(sums) + rest
    }

    /// Adds a row of inputs with its target.
    pub fn update(&mut self, inputs: &[f64], target: f64) {
        self.update_together(std::iter::once((inputs, target)));
    }

    /// Adds the rows of one step, each with its target: past rows are forgotten once. Rows that are not finite are ignored:
    /// they could never be forgotten.
    pub fn update_together<'a>(&mut self, rows: impl Iterator<Item = (&'a [f64], f64)>) {
        let mut forgetting = self.forgetting;
        for (inputs, target) in rows {
            if self.add(inputs, target, forgetting) {
                forgetting = 1.0;
            }
        }
        self.reset_large_gains();
    }

    /// Forgets a part of the past rows, then adds a row. Returns false, without a change, if the row is not finite.
    fn add(&mut self, inputs: &[f64], target: f64, forgetting: f64) -> bool {
        let n = self.use_inputs(inputs);
        let (mut small, mut large) = ([0.0; 2 * SMALL], Vec::new());
        let [inputs_used, weighted] = scratch(n, &mut small, &mut large);
        for (input, at) in inputs_used.iter_mut().zip(&self.used) {
            *input = inputs[*at];
        }
        // The gain is symmetric, so the loop adds its columns instead of summing its rows: each sum would be one chain of
        // additions that wait for each other.
        for (column, input) in self.gain.chunks_exact(n.max(1)).zip(inputs_used.iter()) {
            for (sum, gain) in weighted.iter_mut().zip(column) {
                *sum += gain * input;
            }
        }
        let step = 1.0 / (forgetting + dot(weighted, inputs_used));
        let error = target - self.predict(inputs);
        if !(error * step).is_finite() {
            return false;
        }
        let keep = 1.0 / forgetting;
        self.unused_gain *= keep;
        for ((i, row), at) in self.gain.chunks_exact_mut(n.max(1)).enumerate().zip(&self.used) {
            let pull = weighted[i] * step;
            self.coefficients[*at] += pull * error;
            // Floating-point products commute, so both triangles remain identical.
            for (gain, weighted_j) in row.iter_mut().zip(weighted.iter()) {
                *gain = (*gain - weighted[i] * weighted_j * step) * keep;
            }
        }
        true
    }

    /// Adds the inputs that are not 0 for the first time to the used ones, and returns the number of the used ones.
    fn use_inputs(&mut self, inputs: &[f64]) -> usize {
        let n = self.used.len();
        let mut rest = self.used.iter().peekable();
        let mut is_new = |at: usize, input: f64| rest.next_if_eq(&&at).is_none() && input != 0.0;
        if !inputs.iter().enumerate().any(|(at, input)| is_new(at, *input)) {
            return n;
        }
        let before = std::mem::take(&mut self.used);
        let is_used = |at: &usize| inputs[*at] != 0.0 || before.binary_search(at).is_ok();
        self.used = (0..self.width()).filter(is_used).collect();
        let places: Vec<Option<usize>> = self.used.iter().map(|at| before.binary_search(at).ok()).collect();
        let gain = |(i, j): (usize, usize)| match (places[i], places[j]) {
            (Some(i), Some(j)) => self.gain[i * n + j],
            _ if i == j => self.unused_gain,
            _ => 0.0,
        };
        let n = places.len();
        self.gain = (0..n * n).map(|at| gain((at / n, at % n))).collect();
        n
    }

    /// Resets inputs whose gain has grown too large. The gain of a constant input grows without limit
    /// (wind-up) until one change ruins the model. Only these inputs are reset: an input that is always
    /// absent must not remove the evidence of the others.
    fn reset_large_gains(&mut self) {
        let n = self.used.len();
        let sound = 0.0..=GAIN_GROWTH_MAX * self.prior_gain;
        if !sound.contains(&self.unused_gain) {
            self.unused_gain = self.prior_gain;
        }
        for i in 0..n {
            let own = self.gain[i * n + i];
            if sound.contains(&own) {
                continue;
            }
            if !(own > 0.0 && own.is_finite()) {
                self.gain = diagonal(n, self.prior_gain);
                self.unused_gain = self.prior_gain;
                return;
            }
            // Without the cross terms, both blocks remain positive definite.
            for j in 0..n {
                self.gain[i * n + j] = 0.0;
                self.gain[j * n + i] = 0.0;
            }
            self.gain[i * n + i] = self.prior_gain;
        }
    }

    /// Starts from the coefficients of another model, with the share `trust` (0 to 1) of its evidence. 0 uses
    /// its coefficients only as a starting point; 1 continues as if this model had seen all its rows.
    pub fn warm_start(&mut self, earlier: &Self, trust: f64) {
        if earlier.width() != self.width() {
            return;
        }
        self.coefficients.clone_from(&earlier.coefficients);
        let mixed = |prior: f64, earlier: f64| (1.0 - trust) * prior + trust * earlier;
        self.used.clone_from(&earlier.used);
        self.unused_gain = mixed(self.prior_gain, earlier.unused_gain);
        let prior = diagonal(self.used.len(), self.prior_gain);
        self.gain =
            prior.into_iter().zip(&earlier.gain).map(|(prior, earlier)| mixed(prior, *earlier)).collect();
    }
}

/// Number of inputs of most models, for which a step needs no allocation.
const SMALL: usize = 64;

/// Returns two vectors of n zeros.
fn scratch<'a>(n: usize, small: &'a mut [f64; 2 * SMALL], large: &'a mut Vec<f64>) -> [&'a mut [f64]; 2] {
    let all = if n <= SMALL {
        &mut small[..2 * n]
    } else {
        large.resize(2 * n, 0.0);
        &mut large[..]
    };
    let (one, other) = all.split_at_mut(n);
    [one, other]
}

/// Returns the sum of products. Four sums do not wait for each other.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (firsts, seconds) = (a.chunks_exact(4), b.chunks_exact(4));
    let rest: f64 = firsts.remainder().iter().zip(seconds.remainder()).map(|(a, b)| a * b).sum();
    let mut sums = [0.0; 4];
    for (a, b) in firsts.zip(seconds) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    total(sums) + rest
}

fn total(sums: [f64; 4]) -> f64 {
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

fn diagonal(n: usize, value: f64) -> Vec<f64> {
    (0..n * n).map(|at| if at / n == at % n { value } else { 0.0 }).collect()
}

/// Running mean and deviation of an input (Welford), used to scale inputs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RunningScale {
    count: f64,
    mean: f64,
    squares: f64,
}

impl RunningScale {
    /// Returns the scale after one more reading.
    #[must_use]
    pub fn with(mut self, reading: f64) -> Self {
        let delta = reading - self.mean;
        self.count += 1.0;
        self.mean += delta / self.count;
        self.squares += delta * (reading - self.mean);
        // Readings close to the limits of a float would overflow the sums; the scale then starts again.
        if self.mean.is_finite() && self.squares.is_finite() { self } else { Self::default() }
    }

    /// Returns the distance of a reading from the mean in deviations, clamped to `most` in both directions; 0
    /// for a constant input.
    pub fn deviations(&self, reading: f64, most: f64) -> f64 {
        let scaled = (reading - self.mean) / (self.squares / self.count).sqrt();
        if scaled.is_finite() { scaled.clamp(-most, most) } else { 0.0 }
    }

    /// Whether a stored scale is usable.
    pub(super) fn is_valid(&self) -> bool {
        self.count >= 0.0
            && self.squares >= 0.0
            && [self.count, self.mean, self.squares].iter().all(|x| x.is_finite())
    }

    /// Returns the mean of the readings.
    pub fn mean(&self) -> f64 {
        self.mean
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// The result is the solution of the batch problem, here computed by hand in two dimensions. With forgetting, the
    /// prior fades like the first row.
    #[test]
    fn ends_at_the_batch_ridge_solution() {
        for forgetting in [1.0, 0.97] {
            let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
            let ridge = 2.0;
            let mut rls = RecursiveLeastSquares::new(2, ridge, forgetting);
            // The information matrix [[a, b], [b, d]] and the right-hand side [p, q].
            let mut sums = [ridge, 0.0, ridge, 0.0, 0.0];
            for _ in 0..200 {
                let x = [rng.random::<f64>() - 0.5, rng.random::<f64>() * 2.0];
                let y = 0.7 * x[0] - 0.2 * x[1] + 0.01 * rng.random::<f64>();
                rls.update(&x, y);
                let row = [x[0] * x[0], x[0] * x[1], x[1] * x[1], x[0] * y, x[1] * y];
                sums.iter_mut().zip(row).for_each(|(sum, row)| *sum = forgetting * *sum + row);
            }
            let [a, b, d, p, q] = sums;
            let determinant = a * d - b * b;
            let beta = [(d * p - b * q) / determinant, (a * q - b * p) / determinant];
            for (ours, batch) in rls.coefficients.iter().zip(beta) {
                assert!((ours - batch).abs() < 1e-9, "{ours} {batch}");
            }
        }
    }

    /// Rows of one step end at the batch solution too, and a step of many rows forgets as much as a step of one.
    #[test]
    fn a_step_forgets_once() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(4);
        let (ridge, forgetting) = (2.0, 0.9);
        for rows in [1, 2, 1000] {
            let mut rls = RecursiveLeastSquares::new(1, ridge, forgetting);
            let (mut information, mut product) = (ridge, 0.0);
            for _ in 0..60 {
                let step: Vec<([f64; 1], f64)> =
                    (0..rows).map(|_| ([rng.random::<f64>() - 0.5], rng.random())).collect();
                rls.update_together(step.iter().map(|(x, y)| (&x[..], *y)));
                information *= forgetting;
                product *= forgetting;
                for ([x], y) in step {
                    information += x * x;
                    product += x * y;
                }
            }
            assert!((rls.coefficients[0] - product / information).abs() < 1e-9, "{rows} rows");
            assert!((rls.gain[0] * information - 1.0).abs() < 1e-9, "{rows} rows");
        }
    }

    /// With full trust, the new model behaves exactly like the earlier one.
    #[test]
    fn a_warm_start_continues_from_the_former_worker() {
        let mut earlier = RecursiveLeastSquares::new(2, 1.0, 0.99);
        for k in 0..50 {
            let x = [f64::from(k % 7) - 3.0, f64::from(k % 5) - 2.0];
            earlier.update(&x, x[0] - 2.0 * x[1]);
        }
        let mut later = RecursiveLeastSquares::new(2, 1.0, 0.99);
        later.warm_start(&earlier, 1.0);
        assert_eq!(later, earlier);
        later.warm_start(&earlier, 0.0);
        assert_eq!(later.predict(&[1.0, 0.0]), earlier.predict(&[1.0, 0.0]));
        assert_eq!(later.gain, diagonal(2, 1.0));
    }

    /// Inputs that are constant for a long time and then change do not ruin the coefficients.
    #[test]
    fn a_constant_input_does_not_increase_the_gain() {
        let mut rls = RecursiveLeastSquares::new(2, 10.0, 0.95);
        for _ in 0..10_000 {
            rls.update(&[1.0, 0.0], 0.1);
        }
        rls.update(&[1.0, 1e-3], 0.2);
        assert!(rls.predict(&[1.0, 1.0]).abs() < 10.0);
    }

    /// An input that is always absent does not change the gain of the others.
    #[test]
    fn a_missing_input_removes_no_evidence() {
        let mut with = RecursiveLeastSquares::new(2, 10.0, 0.99);
        let mut without = RecursiveLeastSquares::new(1, 10.0, 0.99);
        for k in 0..2000 {
            let x = 1.0 + f64::from(k % 3);
            with.update(&[x, 0.0], 2.0 * x);
            without.update(&[x], 2.0 * x);
            assert_eq!(with.gain[0], without.gain[0], "after {k}");
            assert_eq!((with.used.len(), with.unused_gain <= GAIN_GROWTH_MAX * with.prior_gain), (1, true));
        }
    }
}

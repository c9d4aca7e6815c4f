//! Least squares over a stream: forgetting, a ridge prior at 0, and inputs brought to one scale.

use serde::{Deserialize, Serialize};

/// A gain that has grown beyond the prior by this factor carries no information any more: it starts again.
const GAIN_GROWTH_MAX: f64 = 100.0;

/// Recursive least squares. Objective: `sum_k forgetting^(n-k) (target_k - x_k . theta)^2 + ridge |theta|^2`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecursiveLeastSquares {
    /// `theta`.
    coefficients: Vec<f64>,
    /// Inverse of the (forgotten) information matrix, by rows: symmetric, positive definite.
    gain: Vec<f64>,
    prior_gain: f64,
    forgetting: f64,
}

impl RecursiveLeastSquares {
    /// `inputs` coefficients at 0. `ridge` > 0: how much evidence a coefficient needs before it moves. `forgetting` in
    /// (0, 1]: what one step leaves of the weight of those before; 1 forgets nothing.
    pub fn new(inputs: usize, ridge: f64, forgetting: f64) -> Self {
        let prior_gain = 1.0 / ridge;
        Self { coefficients: vec![0.0; inputs], gain: diagonal(inputs, prior_gain), prior_gain, forgetting }
    }

    /// How many coefficients there are.
    pub fn width(&self) -> usize {
        self.coefficients.len()
    }

    /// The value expected at these inputs.
    pub fn predict(&self, inputs: &[f64]) -> f64 {
        dot(&self.coefficients, inputs)
    }

    /// Takes a target at these inputs. What is not finite is left out: it would never be forgotten.
    pub fn update(&mut self, inputs: &[f64], target: f64) {
        let n = self.width();
        let weighted: Vec<f64> = self.gain.chunks_exact(n).map(|row| dot(row, inputs)).collect();
        let step = 1.0 / (self.forgetting + dot(&weighted, inputs));
        let error = target - self.predict(inputs);
        if !(error * step).is_finite() {
            return;
        }
        let keep = 1.0 / self.forgetting;
        for (i, row) in self.gain.chunks_exact_mut(n).enumerate() {
            let pull = weighted[i] * step;
            self.coefficients[i] += pull * error;
            // Products commute in floating point too, so that both triangles stay the same to the last bit.
            for (gain, weighted_j) in row.iter_mut().zip(&weighted) {
                *gain = (*gain - weighted[i] * weighted_j * step) * keep;
            }
        }
        self.rein_in();
    }

    /// Inputs that stay still let their gain grow without end (wind-up) until one jolt ruins the model: they start again, and
    /// only they. One that is always absent would else take the evidence of all others away, again and again.
    fn rein_in(&mut self) {
        let n = self.width();
        let sound = 0.0..=GAIN_GROWTH_MAX * self.prior_gain;
        for i in 0..n {
            let own = self.gain[i * n + i];
            if sound.contains(&own) {
                continue;
            }
            if !(own > 0.0 && own.is_finite()) {
                self.gain = diagonal(n, self.prior_gain);
                return;
            }
            // Without what ties it to the others, both parts stay positive definite.
            for j in 0..n {
                self.gain[i * n + j] = 0.0;
                self.gain[j * n + i] = 0.0;
            }
            self.gain[i * n + i] = self.prior_gain;
        }
    }

    /// Starts from what another stream has learned, with `trust` (0 to 1) of the evidence behind it: 0 takes its
    /// coefficients as a mere starting point, 1 as if this stream had seen it all.
    pub fn warm_start(&mut self, earlier: &Self, trust: f64) {
        if earlier.width() != self.width() {
            return;
        }
        self.coefficients.clone_from(&earlier.coefficients);
        for (gain, (prior, earlier)) in self
            .gain
            .iter_mut()
            .zip(diagonal(earlier.width(), self.prior_gain).into_iter().zip(&earlier.gain))
        {
            *gain = (1.0 - trust) * prior + trust * earlier;
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn diagonal(n: usize, value: f64) -> Vec<f64> {
    (0..n * n).map(|at| if at / n == at % n { value } else { 0.0 }).collect()
}

/// Running mean and deviation of an input (Welford), to bring all inputs to one scale.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RunningScale {
    count: f64,
    mean: f64,
    squares: f64,
}

impl RunningScale {
    /// The scale with one more reading.
    #[must_use]
    pub fn with(mut self, reading: f64) -> Self {
        let delta = reading - self.mean;
        self.count += 1.0;
        self.mean += delta / self.count;
        self.squares += delta * (reading - self.mean);
        // A reading near the end of what a number can hold would leave no scale at all.
        if self.mean.is_finite() && self.squares.is_finite() { self } else { Self::default() }
    }

    /// How many deviations a reading lies from the mean, at most `most` either way; a constant input says 0.
    pub fn deviations(&self, reading: f64, most: f64) -> f64 {
        let scaled = (reading - self.mean) / (self.squares / self.count).sqrt();
        if scaled.is_finite() { scaled.clamp(-most, most) } else { 0.0 }
    }

    /// The mean of the readings.
    pub fn mean(&self) -> f64 {
        self.mean
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
        let mut rls = RecursiveLeastSquares::new(2, ridge, 1.0);
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

    /// A stream that takes over all evidence goes on as the earlier one would have.
    #[test]
    fn a_warm_start_goes_on_where_the_other_stood() {
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

    /// Inputs that stand still for long, then jump: the coefficients stay sane.
    #[test]
    fn standing_still_does_not_wind_the_gain_up() {
        let mut rls = RecursiveLeastSquares::new(2, 10.0, 0.95);
        for _ in 0..10_000 {
            rls.update(&[1.0, 0.0], 0.1);
        }
        rls.update(&[1.0, 1e-3], 0.2);
        assert!(rls.predict(&[1.0, 1.0]).abs() < 10.0);
    }

    /// What an absent input does to the gain of the others: nothing.
    #[test]
    fn an_input_that_never_comes_takes_no_evidence_away() {
        let mut with = RecursiveLeastSquares::new(2, 10.0, 0.99);
        let mut without = RecursiveLeastSquares::new(1, 10.0, 0.99);
        for k in 0..2000 {
            let x = 1.0 + f64::from(k % 3);
            with.update(&[x, 0.0], 2.0 * x);
            without.update(&[x], 2.0 * x);
            assert_eq!(with.gain[0], without.gain[0], "after {k}");
        }
    }
}

//! AdaScale: the factor by which gradient noise allows larger steps with a larger batch.
//!
//! Gradients of local batches differ only by noise. Their spread gives the noise of one sample, `tr Sigma`,
//! and the remaining part of the mean's norm gives the signal, `|G|^2`. Let `sigma2 = tr Sigma / B_0` be the
//! noise at the base batch, and `mu2 = |G|^2`. The gain of a batch of scale `k` is
//! `r = (sigma2 + mu2) / (sigma2 / k + mu2)`: `k` with only noise, 1 without noise.

use serde::{Deserialize, Serialize};

use super::error::{LearningRateError, NORM_MAX};
use crate::series::COUNT_MAX;

/// Minimum of the estimated noise.
const VARIANCE_MIN: f64 = 1e-6;
/// Memory of the averages, in iterations at scale 1.
const MEMORY_ITERATIONS: f64 = 1000.0;

/// Squared norms of the gradients of one iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GradientNorms {
    /// Squared norm of each local batch's mean gradient.
    pub locals: Vec<LocalNorm>,
    /// Squared norm of the global mean gradient, weighted by local batches.
    pub global_squared: f64,
}

/// Squared norm of one worker's gradient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LocalNorm {
    /// Number of samples in its local batch; at least 1.
    pub local_batch: u64,
    /// Squared norm of its mean gradient.
    pub squared: f64,
}

/// Noise and signal of gradients, estimated from one iteration; both estimates may be negative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// `tr Sigma`: variance of one sample's gradient, summed over all parameters.
    pub sample_variance: f64,
    /// `|G|^2`: squared norm of the gradient without noise.
    pub squared_norm: f64,
}

impl GradientNorms {
    /// Returns unbiased estimates, also for unequal local batches. Let `g = sum (b_i / B) g_i`, `A` the mean
    /// of `|g_i|^2` and `h` the mean of `1 / b_i`. Then `tr Sigma = (A - |g|^2) / (h - 1/B)` and
    /// `|G|^2 = |g|^2 - tr Sigma / B`.
    ///
    /// # Errors
    /// [`LearningRateError`] if there are fewer than 2 local batches, one has no samples, or a norm is not in its
    /// range.
    pub fn estimate(&self) -> Result<Estimate, LearningRateError> {
        let count = self.locals.len();
        if count < 2 {
            return Err(LearningRateError::TooFewGradients { count });
        }
        for value in self.locals.iter().map(|local| local.squared).chain([self.global_squared]) {
            if !(0.0..=NORM_MAX).contains(&value) {
                return Err(LearningRateError::Norm { value });
            }
        }
        if self.locals.iter().any(|local| local.local_batch == 0) {
            return Err(LearningRateError::NoSamples { which: "local batch" });
        }
        let mean = |of: fn(&LocalNorm) -> f64| self.locals.iter().map(of).sum::<f64>() / count as f64;
        let total: f64 = self.locals.iter().map(|local| local.local_batch as f64).sum();
        let spread = mean(|local| local.squared) - self.global_squared;
        let sample_variance = spread / (mean(|local| 1.0 / local.local_batch as f64) - 1.0 / total);
        Ok(Estimate { sample_variance, squared_norm: self.global_squared - sample_variance / total })
    }
}

/// Returns the gain of a batch of this scale, for this noise and signal at the base batch.
pub fn gain(variance: f64, squared_norm: f64, scale: f64) -> f64 {
    (variance + squared_norm) / (variance / scale + squared_norm)
}

/// Averages of noise and signal over iterations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Averages {
    /// `sigma2`: noise at the base batch.
    variance: f64,
    /// `mu2`: signal.
    squared_norm: f64,
    /// Number of processed iterations.
    count: u64,
    /// The latest of them.
    pub newest: Option<u64>,
}

impl Averages {
    /// Adds the estimate of an iteration. The memory is `1000 / k` iterations. The result is an exponential
    /// average with `theta = max(1 - k / 1000, 0)`; until there are that many iterations, it is the plain
    /// mean.
    pub fn take(&mut self, iteration: u64, estimate: Estimate, base_global_batch: u64, scale: f64) {
        self.newest = Some(iteration);
        self.count += 1;
        let new = (scale / MEMORY_ITERATIONS).min(1.0);
        let weight = if (self.count as f64) < 1.0 / new { 1.0 / self.count as f64 } else { new };
        let variance = (estimate.sample_variance / base_global_batch as f64).max(VARIANCE_MIN);
        // A mean of two terms, because a difference of extreme numbers would lose the smaller one.
        let mean = |before: f64, now: f64| weight * now + (1.0 - weight) * before;
        self.variance = mean(self.variance, variance).max(VARIANCE_MIN);
        self.squared_norm = mean(self.squared_norm, estimate.squared_norm.max(0.0));
    }

    /// Whether stored averages are usable.
    pub fn is_valid(&self) -> bool {
        self.count <= COUNT_MAX
            && (0.0..=NORM_MAX).contains(&self.squared_norm)
            && (self.count == 0 || (VARIANCE_MIN..=NORM_MAX).contains(&self.variance))
    }

    /// Returns the gain at a scale; 1 without estimates.
    pub fn gain(&self, scale: f64) -> f64 {
        if self.count == 0 { 1.0 } else { gain(self.variance, self.squared_norm, scale) }
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// Returns the norms of these gradients with their local batches.
    fn norms(gradients: &[(u64, &[f64])]) -> GradientNorms {
        let total: f64 = gradients.iter().map(|(batch, _)| *batch as f64).sum();
        let squared = |gradient: &[f64]| gradient.iter().map(|value| value * value).sum::<f64>();
        let mean: Vec<f64> = (0..gradients[0].1.len())
            .map(|at| gradients.iter().map(|(batch, g)| *batch as f64 / total * g[at]).sum())
            .collect();
        let locals =
            gradients.iter().map(|(batch, g)| LocalNorm { local_batch: *batch, squared: squared(g) });
        GradientNorms { locals: locals.collect(), global_squared: squared(&mean) }
    }

    fn near(ours: f64, golden: f64) -> bool {
        (ours - golden).abs() < 1e-9
    }

    #[test]
    fn golden_equal_batches() {
        let golden: [(&[&[f64]], f64, f64, f64); 2] = [
            (&[&[1.0, 0.0], &[0.0, 1.0]], 1.0, 0.0, 2.0),
            (&[&[3.0, 1.0], &[1.0, 1.0], &[2.0, 4.0], &[2.0, 2.0]], 8.0 / 3.0, 22.0 / 3.0, 1.25),
        ];
        for (gradients, variance, squared_norm, expected) in golden {
            let workers = gradients.len() as f64;
            // The base batch is a local batch, so its noise is the noise of one local gradient.
            for batch in [1, 8] {
                let given: Vec<(u64, &[f64])> = gradients.iter().map(|g| (batch, *g)).collect();
                let ours = norms(&given).estimate().unwrap();
                assert!(near(ours.sample_variance / batch as f64, variance), "{ours:?}");
                assert!(near(ours.squared_norm, squared_norm), "{ours:?}");
                let mut averages = Averages::default();
                averages.take(0, ours, batch, workers);
                assert!(near(averages.gain(workers), expected), "{averages:?}");
            }
        }
    }

    #[test]
    fn golden_gains() {
        for (scale, expected) in [(0.5, 0.6), (1.0, 1.0), (2.0, 1.5), (4.0, 2.0), (10.0, 2.5)] {
            assert!(near(gain(2.0, 1.0, scale), expected));
        }
        assert!(near(gain(3.0, 1.0, 3.0), 2.0));
        assert_eq!(Averages::default().gain(16.0), 1.0);
    }

    /// Local batches of 4, 8 and 20 samples. Their gradients have total variance 8.5 and squared norm 1.38.
    #[test]
    fn unequal_batches_are_estimated_without_bias() {
        const ITERATIONS: u32 = 60_000;
        let deviations = [2.0f64, 1.5, 1.5]; // Squares sum to 8.5.
        let signal = [1.0f64, 0.6, 0.141_421_356_237_309_5]; // Squares sum to 1.38.
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        let mut mean = |batch: u64, at: usize| {
            let noise: f64 = (0..batch).map(|_| 12f64.sqrt() * (rng.random::<f64>() - 0.5)).sum();
            signal[at] + deviations[at] * noise / batch as f64
        };
        let (mut variance, mut squared) = (0.0, 0.0);
        for _ in 0..ITERATIONS {
            let gradients: Vec<(u64, [f64; 3])> =
                [4, 8, 20].map(|batch| (batch, [0, 1, 2].map(|at| mean(batch, at)))).to_vec();
            let given: Vec<(u64, &[f64])> =
                gradients.iter().map(|(batch, g)| (*batch, g.as_slice())).collect();
            let estimate = norms(&given).estimate().unwrap();
            variance += estimate.sample_variance / f64::from(ITERATIONS);
            squared += estimate.squared_norm / f64::from(ITERATIONS);
        }
        assert!((variance / 8.5 - 1.0).abs() < 0.01, "{variance}");
        assert!((squared / 1.38 - 1.0).abs() < 0.01, "{squared}");
    }

    /// First a plain mean, then an exponential one. At a scale of 500, theta is 0.5, so the exponential mean
    /// starts at two.
    #[test]
    fn averages_start_as_plain_means() {
        let at = |variance: f64| Estimate { sample_variance: variance, squared_norm: 1.0 };
        let mut averages = Averages::default();
        for (iteration, variance) in [4.0, 8.0, 2.0].into_iter().enumerate() {
            averages.take(iteration as u64, at(variance), 1, 500.0);
        }
        assert!(near(averages.variance, 4.0), "{averages:?}");
        let mut averages = Averages::default();
        for (iteration, variance) in [4.0, 8.0, 3.0].into_iter().enumerate() {
            averages.take(iteration as u64, at(variance), 1, 2.0);
        }
        assert!(near(averages.variance, 5.0), "{averages:?}");
    }

    /// One iteration at a huge scale replaces an earlier estimate that is larger by more than the precision.
    #[test]
    fn a_small_estimate_after_a_huge_one_is_not_lost() {
        let at = |variance: f64| Estimate { sample_variance: variance, squared_norm: 0.0 };
        let mut averages = Averages::default();
        averages.take(0, at(1e60), 1, 1.0);
        averages.take(1, at(1e-3), 1, 1e9);
        assert_eq!((averages.variance, averages.gain(2.0)), (1e-3, 2.0));
    }

    #[test]
    fn invalid_norms_are_rejected() {
        let two = norms(&[(4, &[1.0]), (4, &[2.0])]);
        let message = |norms: GradientNorms| norms.estimate().unwrap_err().to_string();
        let nan = GradientNorms { global_squared: f64::NAN, ..two.clone() };
        assert_eq!(message(nan), "squared gradient norm NaN is invalid; it must be 0 to 1e100");
        let mut none = two.clone();
        none.locals[1].local_batch = 0;
        assert_eq!(message(none), "local batch is 0; it must be at least 1");
        let one = GradientNorms { locals: two.locals[..1].to_vec(), ..two };
        assert_eq!(
            message(one),
            "gradients of 1 local batches: at least 2 are required to estimate the noise"
        );
    }
}

//! A band around the forecast that keeps its promised coverage: adaptive conformal inference (Gibbs and Candes 2021)
//! over recent residuals of log speed.
//!
//! The half width is the `1 - alpha_t` quantile of the last absolute residuals; after each score
//! `alpha_{t+1} = alpha_t + gamma (alpha - missed)`, so that misses widen the band and hits narrow it.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Residuals remembered.
const WINDOW: usize = 128;
/// Residuals needed before the window speaks for itself.
const WINDOW_MIN: usize = 10;
/// Half width until then: about 35 % of speed either way.
const HALF_WIDTH_COLD: f64 = 0.3;
/// How quickly the level follows misses.
const GAMMA: f64 = 0.02;
/// The level never leaves this range: a band of all residuals at the one end, of none at the other.
const ALPHA_RANGE: (f64, f64) = (0.001, 0.5);

/// The half width of a forecast's interval, on the log scale.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AdaptiveInterval {
    alpha: f64,
    level: f64,
    residuals: VecDeque<f64>,
    half_width: f64,
}

impl AdaptiveInterval {
    /// For a coverage in (0, 1).
    pub fn new(coverage: f64) -> Self {
        let alpha = 1.0 - coverage;
        Self { alpha, level: alpha, residuals: VecDeque::with_capacity(WINDOW), half_width: HALF_WIDTH_COLD }
    }

    /// Takes the residual (actual minus forecast) of the band that was given.
    pub fn score(&mut self, residual: f64) {
        let missed = if residual.abs() > self.half_width { 1.0 } else { 0.0 };
        if self.residuals.len() >= WINDOW_MIN {
            self.level = (self.level + GAMMA * (self.alpha - missed)).clamp(ALPHA_RANGE.0, ALPHA_RANGE.1);
        }
        if self.residuals.len() == WINDOW {
            self.residuals.pop_front();
        }
        self.residuals.push_back(residual);
        if self.residuals.len() >= WINDOW_MIN {
            self.half_width = self.quantile(1.0 - self.level);
        }
    }

    /// The half width of the coming forecast's band.
    pub fn half_width(&self) -> f64 {
        self.half_width
    }

    /// The latest residuals, the oldest first.
    pub fn residuals(&self) -> impl Iterator<Item = f64> + '_ {
        self.residuals.iter().copied()
    }

    fn quantile(&self, share: f64) -> f64 {
        let mut sorted: Vec<f64> = self.residuals.iter().map(|residual| residual.abs()).collect();
        // The conformal quantile: the (n + 1) share -th smallest, the largest where there are too few.
        let at = ((sorted.len() as f64 + 1.0) * share).ceil() as usize;
        let at = at.clamp(1, sorted.len()) - 1;
        *sorted.select_nth_unstable_by(at, f64::total_cmp).1
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// Coverage stays near its promise even when the noise grows fivefold halfway.
    #[test]
    fn coverage_is_kept_through_a_change_of_noise() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(11);
        let mut interval = AdaptiveInterval::new(0.9);
        let (mut covered, mut count) = (0, 0);
        for k in 0..4000 {
            let scale = if k < 2000 { 0.1 } else { 0.5 };
            let residual = scale * (rng.random::<f64>() + rng.random::<f64>() - 1.0);
            if k >= 100 {
                covered += i32::from(residual.abs() <= interval.half_width());
                count += 1;
            }
            interval.score(residual);
        }
        let coverage = f64::from(covered) / f64::from(count);
        assert!((0.88..=0.92).contains(&coverage), "{coverage}");
    }

    /// Noise that grows without end outruns any window of the past: only the adaptive level keeps up.
    #[test]
    fn coverage_is_kept_while_noise_grows() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(13);
        let mut interval = AdaptiveInterval::new(0.9);
        let (mut covered, mut count) = (0, 0);
        for k in 0..3000 {
            let scale = 0.001 * 1.004f64.powi(k);
            let residual = scale * (rng.random::<f64>() + rng.random::<f64>() - 1.0);
            if k >= 200 {
                covered += i32::from(residual.abs() <= interval.half_width());
                count += 1;
            }
            interval.score(residual);
        }
        let coverage = f64::from(covered) / f64::from(count);
        assert!((0.88..=0.92).contains(&coverage), "{coverage}");
    }
}

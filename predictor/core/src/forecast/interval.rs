//! An interval around the forecast that keeps its nominal coverage: adaptive conformal inference (Gibbs and
//! Candes 2021) over recent residuals of log speed.
//!
//! The half width is the `1 - alpha_t` quantile of the latest absolute residuals. After each score
//! `alpha_{t+1} = alpha_t + gamma (alpha - missed)`: a residual outside the interval widens it, one inside
//! narrows it.

use serde::{Deserialize, Serialize};

use crate::series::{LEARNABLE, LOG_SPEED_MAX};

/// Number of residuals kept.
const WINDOW: usize = 128;
/// Number of residuals required before their quantile is used.
const WINDOW_MIN: usize = 10;
/// Initial half width: about 35 % of speed in either direction.
const HALF_WIDTH_COLD: f64 = 0.3;
/// Step size of the level (`gamma`).
const GAMMA: f64 = 0.02;
/// Range of the level. At its lower end the interval covers all residuals, at its upper end half of them.
const ALPHA_RANGE: (f64, f64) = (0.001, 0.5);

/// Maximum of a residual: both speeds are bounded, and forecasts are close to the range of speeds.
const RESIDUAL_MAX: f64 = 2.0 * LOG_SPEED_MAX + 1.0;

/// The half width of a forecast's interval, on the log scale.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AdaptiveInterval {
    alpha: f64,
    level: f64,
    /// The latest residuals with their iterations, oldest first.
    residuals: Vec<(u64, f64)>,
    /// Number of them since the speed changed at once. Earlier ones do not tell the half width.
    current: usize,
    /// Pauses in the time of the residuals, in seconds, with their iterations, oldest first.
    pauses: Vec<(u64, f64)>,
    half_width: f64,
}

impl AdaptiveInterval {
    /// Creates an interval with a coverage in (0, 1).
    pub fn new(coverage: f64) -> Self {
        let alpha = 1.0 - coverage;
        Self {
            alpha,
            level: alpha,
            residuals: Vec::with_capacity(WINDOW),
            current: 0,
            pauses: Vec::new(),
            half_width: HALF_WIDTH_COLD,
        }
    }

    /// Updates the interval with the residual (actual minus forecast) of an iteration.
    pub fn score(&mut self, iteration: u64, residual: f64) {
        let missed = if residual.abs() > self.half_width { 1.0 } else { 0.0 };
        if self.current >= WINDOW_MIN {
            self.level = (self.level + GAMMA * (self.alpha - missed)).clamp(ALPHA_RANGE.0, ALPHA_RANGE.1);
        }
        if self.residuals.len() == WINDOW {
            self.residuals.remove(0);
        }
        self.residuals.push((iteration, residual));
        self.current = (self.current + 1).min(WINDOW);
        let oldest = self.residuals.first().map_or(0, |(oldest, _)| *oldest);
        self.pauses.retain(|(paused, _)| *paused >= oldest);
        if self.current >= WINDOW_MIN {
            self.half_width = self.quantile(1.0 - self.level);
        }
    }

    /// Records a pause: seconds that an iteration took longer, whatever its batch.
    pub fn pause(&mut self, iteration: u64, seconds: f64) {
        if LEARNABLE.contains(&seconds) {
            self.pauses.push((iteration, seconds));
        }
        if self.pauses.len() > WINDOW {
            self.pauses.remove(0);
        }
    }

    /// Starts again after a change: the interval is wide until there are residuals of the new speed.
    pub fn restart(&mut self) {
        self.current = 0;
        self.level = self.alpha;
        self.half_width = self.half_width.max(HALF_WIDTH_COLD);
    }

    /// Whether a stored interval is usable. Residuals are in ascending order of iterations.
    pub(super) fn is_valid(&self) -> bool {
        let is_residual = |(_, residual): &(u64, f64)| residual.abs() <= RESIDUAL_MAX;
        (0.0..=1.0).contains(&self.alpha)
            && (ALPHA_RANGE.0..=ALPHA_RANGE.1).contains(&self.level)
            && (0.0..=RESIDUAL_MAX).contains(&self.half_width)
            && self.residuals.len() <= WINDOW
            && self.current <= self.residuals.len()
            && self.pauses.len() <= WINDOW
            && self.pauses.iter().all(|(_, seconds)| LEARNABLE.contains(seconds))
            && self.pauses.is_sorted_by(|(before, _), (after, _)| before < after)
            && self.residuals.iter().all(is_residual)
            && self.residuals.is_sorted_by(|(before, _), (after, _)| before < after)
    }

    /// Returns the half width for the next forecast.
    pub fn half_width(&self) -> f64 {
        self.half_width
    }

    /// Returns the latest residuals with their iterations, oldest first.
    pub fn residuals(&self) -> &[(u64, f64)] {
        &self.residuals
    }

    /// Returns the pauses, oldest first.
    pub fn pauses(&self) -> &[(u64, f64)] {
        &self.pauses
    }

    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = [0.0; WINDOW];
        let current = &self.residuals[self.residuals.len().saturating_sub(self.current)..];
        let sorted = &mut sorted[..current.len()];
        sorted.iter_mut().zip(current).for_each(|(size, (_, residual))| *size = residual.abs());
        // The conformal quantile: the ceil((n + 1) share)-th smallest residual, or the largest if there are
        // too few.
        let at = ((sorted.len() as f64 + 1.0) * share).ceil() as usize;
        let at = at.clamp(1, sorted.len()) - 1;
        *sorted.select_nth_unstable_by(at, f64::total_cmp).1
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// Coverage stays near its nominal value even if the noise grows fivefold during the run.
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
            interval.score(k, residual);
        }
        let coverage = f64::from(covered) / f64::from(count);
        assert!((0.88..=0.92).contains(&coverage), "{coverage}");
    }

    /// If noise grows continuously, a window of the past is not enough: the adaptive level must correct the
    /// coverage.
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
            interval.score(u64::from(k.unsigned_abs()), residual);
        }
        let coverage = f64::from(covered) / f64::from(count);
        assert!((0.88..=0.92).contains(&coverage), "{coverage}");
    }
}

//! Online aggregation of experts: Bernstein online aggregation (Wintenberger 2017, "Optimal learning with
//! Bernstein online aggregation"). A small fixed share of weight lets an expert recover after a long bad
//! period.
//!
//! `g` is the slope of the loss at the mix, `r_i = g (mix - x_i)` the linearised regret of expert i, `V_i`
//! the sum of its squares, and `p_i` its prior weight:
//!
//! - `eta_i = min(1 / (2 max|r_i|), sqrt(ln N / V_i))`
//! - `R_i += r_i - eta_i r_i^2`
//! - `w_i ~ p_i eta_i exp(eta_i R_i)`
//!
//! The loss is squared error in log speed, or any loss whose slope the caller provides. Selecting the recent
//! best expert instead is less accurate, because records are noisy.

use serde::{Deserialize, Serialize};

/// Share of the weight that is distributed evenly at each step.
const FIXED_SHARE: f64 = 0.005;
/// Weight of an expert that is added later, before any evidence.
const NEW_EXPERT_WEIGHT: f64 = 0.02;
/// Range of the prior weight of an expert that is judged by evidence.
const JUDGED_WEIGHTS: (f64, f64) = (0.005, 0.95);
/// Decay of regrets and losses per step: regimes older than some hundred iterations fade.
const DECAY: f64 = 0.99;

/// Maximum of a sum in a stored record.
const SUM_MAX: f64 = 1e30;

/// Weights of experts, learned from their records.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Mix {
    /// Weights before any record.
    prior: Vec<f64>,
    weights: Vec<f64>,
    records: Vec<Record>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
struct Record {
    regret: f64,
    squared_regret: f64,
    regret_max: f64,
    squared_error: f64,
    scored: f64,
}

impl Mix {
    /// Creates a mix with weights proportional to `prior`, one positive value per expert, and without
    /// records.
    pub fn new(prior: &[f64]) -> Self {
        let sum: f64 = prior.iter().sum();
        let prior: Vec<f64> = prior.iter().map(|weight| weight / sum).collect();
        Self { weights: prior.clone(), records: vec![Record::default(); prior.len()], prior }
    }

    /// Appends an expert. It starts without a record and with a small weight, which is taken from all others
    /// proportionally.
    pub fn add_expert(&mut self) {
        let share = NEW_EXPERT_WEIGHT;
        for weights in [&mut self.weights, &mut self.prior] {
            weights.iter_mut().for_each(|weight| *weight *= 1.0 - share);
            weights.push(share);
        }
        self.records.push(Record::default());
    }

    /// Replaces the model of expert `at` and multiplies its prior odds by `exp(evidence)`: the likelihood ratio of the new model
    /// and the mix. Regrets of the model before are forgotten.
    pub fn judge(&mut self, at: usize, evidence: f64) {
        let (Some(prior), Some(record)) = (self.prior.get(at).copied(), self.records.get_mut(at)) else {
            return;
        };
        record.regret = record.regret.max(0.0);
        let odds = prior / (1.0 - prior) * evidence.exp();
        let weight = (1.0 / (1.0 + 1.0 / odds)).clamp(JUDGED_WEIGHTS.0, JUDGED_WEIGHTS.1);
        for weights in [&mut self.prior, &mut self.weights] {
            let rest = (1.0 - weight) / (1.0 - weights[at]);
            weights.iter_mut().for_each(|other| *other *= rest);
            weights[at] = weight;
        }
    }

    /// Uses the weights of an earlier mix of the same experts as the prior. The earlier mix may have more
    /// experts after these.
    pub fn warm_start(&mut self, earlier: &Self) {
        let known = earlier.weights.get(..self.weights.len());
        let sum: f64 = known.unwrap_or_default().iter().sum();
        if let Some(known) = known.filter(|_| sum > 0.0) {
            self.prior = known.iter().map(|weight| weight / sum).collect();
            self.weights.clone_from(&self.prior);
        }
    }

    /// Whether a stored mix of this number of experts is usable.
    pub(super) fn is_valid(&self, experts: usize) -> bool {
        let is_distribution = |weights: &[f64]| {
            let sum: f64 = weights.iter().sum();
            weights.len() == experts
                && weights.iter().all(|weight| *weight > 0.0)
                && (0.99..1.01).contains(&sum)
        };
        is_distribution(&self.prior)
            && is_distribution(&self.weights)
            && self.records.len() == experts
            && self.records.iter().all(Record::is_valid)
    }

    /// Returns the weights; they sum to 1.
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// Returns the weighted mean of the experts' forecasts.
    pub fn combine(&self, forecasts: &[f64]) -> f64 {
        self.weights.iter().zip(forecasts).map(|(weight, forecast)| weight * forecast).sum()
    }

    /// Returns the root mean squared error of expert `i`, exponentially weighted; `None` before its first
    /// score.
    pub fn log_rmse(&self, i: usize) -> Option<f64> {
        let record = self.records.get(i)?;
        (record.scored > 0.0).then(|| (record.squared_error / record.scored).sqrt())
    }

    /// Scores the forecasts against the actual value by squared error, and updates the weights.
    pub fn score(&mut self, forecasts: &[f64], actual: f64) {
        let slope = 2.0 * (self.combine(forecasts) - actual);
        self.score_by(forecasts, actual, slope);
    }

    /// Scores the forecasts by a loss with this `slope` at the mix's forecast, and updates the weights.
    pub fn score_by(&mut self, forecasts: &[f64], actual: f64, slope: f64) {
        let mixed = self.combine(forecasts);
        let choice = (self.records.len() as f64).ln();
        for (record, forecast) in self.records.iter_mut().zip(forecasts) {
            let regret = slope * (mixed - forecast);
            record.squared_error = DECAY * record.squared_error + (forecast - actual).powi(2);
            record.scored = DECAY * record.scored + 1.0;
            record.squared_regret = DECAY * record.squared_regret + regret * regret;
            record.regret_max = (DECAY * record.regret_max).max(regret.abs());
            record.regret = DECAY * record.regret + regret - record.learning_rate(choice) * regret * regret;
        }
        self.reweigh(choice);
    }

    fn reweigh(&mut self, choice: f64) {
        let rate_max = self.records.iter().map(|record| record.learning_rate(choice)).fold(0.0, f64::max);
        if rate_max <= 0.0 || !rate_max.is_finite() {
            return;
        }
        let exponent = |(record, prior): (&Record, &f64)| {
            // Experts without a record use the largest learning rate.
            let rate = Some(record.learning_rate(choice)).filter(|rate| *rate > 0.0).unwrap_or(rate_max);
            (prior * rate / rate_max).ln() + rate * record.regret
        };
        let exponents: Vec<f64> = self.records.iter().zip(&self.prior).map(exponent).collect();
        let top = exponents.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let raw: Vec<f64> = exponents.iter().map(|exponent| (exponent - top).exp()).collect();
        let sum: f64 = raw.iter().sum();
        if sum.is_finite() && sum > 0.0 {
            let even = FIXED_SHARE / raw.len() as f64;
            self.weights = raw.iter().map(|weight| (1.0 - FIXED_SHARE) * weight / sum + even).collect();
        }
    }
}

impl Record {
    fn is_valid(&self) -> bool {
        let Self { regret, squared_regret, regret_max, squared_error, scored } = *self;
        let is_sum = |sum: f64| (0.0..=SUM_MAX).contains(&sum);
        regret.abs() <= SUM_MAX && [squared_regret, regret_max, squared_error, scored].into_iter().all(is_sum)
    }

    /// Returns 0 while the expert has never differed from the mix, since then its regret is unknown.
    fn learning_rate(&self, choice: f64) -> f64 {
        if self.squared_regret > 0.0 {
            (0.5 / self.regret_max).min((choice / self.squared_regret).sqrt())
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the regret bound: the mix's loss is close to the best expert's loss.
    #[test]
    fn comes_close_to_the_best_expert() {
        let mut mix = Mix::new(&[1.0; 3]);
        let (mut ours, mut best) = (0.0, 0.0);
        for k in 0..500 {
            let actual = f64::from(k % 11) * 0.1;
            let forecasts = [actual + 0.02, actual - 0.5, 0.0];
            ours += (mix.combine(&forecasts) - actual).powi(2);
            best += 0.02f64.powi(2);
            mix.score(&forecasts, actual);
        }
        assert!(ours < best + 1.0, "{ours} against {best}");
        assert!(mix.weights()[0] > 0.9, "{:?}", mix.weights());
    }

    /// An expert that was the worst for a long time leads soon after it becomes the best.
    #[test]
    fn an_expert_regains_its_weight() {
        let mut mix = Mix::new(&[1.0; 2]);
        for _ in 0..500 {
            mix.score(&[1.0, 0.0], 0.0);
        }
        assert!(mix.weights()[0] < 0.01);
        for _ in 0..200 {
            mix.score(&[1.0, 0.0], 1.0);
        }
        assert!(mix.weights()[0] > 0.9, "{:?}", mix.weights());
    }

    /// An expert that is added later takes its initial weight from all others, and gains more only by its
    /// record.
    #[test]
    fn a_newcomer_is_judged_by_its_own_record() {
        let mut mix = Mix::new(&[1.0; 2]);
        for _ in 0..100 {
            mix.score(&[0.1, 1.0], 0.0);
        }
        mix.add_expert();
        assert!((mix.weights().iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!((mix.weights()[2], mix.log_rmse(2)), (NEW_EXPERT_WEIGHT, None));
        for _ in 0..100 {
            mix.score(&[0.1, 1.0, 0.5], 0.0);
        }
        assert!(mix.weights()[0] > 0.9, "{:?}", mix.weights());
    }
}

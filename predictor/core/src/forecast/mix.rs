//! Online aggregation of experts: Bernstein online aggregation (Wintenberger 2017, "Optimal learning with Bernstein
//! online aggregation"), with a small fixed share so that an expert which was bad for long can come back.
//!
//! With `r_i = l'(mix) (mix - x_i)` the linearised regret of expert i, and `V_i` the sum of its squares,
//! `eta_i = min(1 / (2 max|r_i|), sqrt(ln N / V_i))`, `R_i += r_i - eta_i r_i^2`, `w_i ~ eta_i exp(eta_i R_i)`.
//! The loss is squared error in log speed. Picking the recent best instead costs accuracy: records are noisy.

/// Share of the weight that is spread evenly at each step.
const FIXED_SHARE: f64 = 0.005;
/// What one step forgets of regrets and losses: regimes older than some hundred iterations fade.
const FADING: f64 = 0.995;

/// Weights of `N` experts, learned from their records.
#[derive(Debug, Clone)]
pub struct Mix<const N: usize> {
    weights: [f64; N],
    regret: [f64; N],
    squared_regret: [f64; N],
    regret_max: [f64; N],
    squared_error: [f64; N],
    scored: f64,
}

impl<const N: usize> Mix<N> {
    /// Even weights: no records yet.
    pub fn uniform() -> Self {
        Self {
            weights: [1.0 / N as f64; N],
            regret: [0.0; N],
            squared_regret: [0.0; N],
            regret_max: [0.0; N],
            squared_error: [0.0; N],
            scored: 0.0,
        }
    }

    /// The weights; they sum to 1.
    pub fn weights(&self) -> &[f64; N] {
        &self.weights
    }

    /// The weighted mean of the experts' forecasts.
    pub fn combine(&self, forecasts: &[f64; N]) -> f64 {
        self.weights.iter().zip(forecasts).map(|(weight, forecast)| weight * forecast).sum()
    }

    /// Root mean squared error of expert `i`, faded; `None` before the first score.
    pub fn log_rmse(&self, i: usize) -> Option<f64> {
        (self.scored > 0.0).then(|| (self.squared_error[i] / self.scored).sqrt())
    }

    /// Scores the forecasts against what came and moves the weights.
    pub fn score(&mut self, forecasts: &[f64; N], actual: f64) {
        let mixed = self.combine(forecasts);
        let slope = 2.0 * (mixed - actual);
        self.scored = FADING * self.scored + 1.0;
        for (i, forecast) in forecasts.iter().enumerate() {
            let regret = slope * (mixed - forecast);
            self.squared_error[i] = FADING * self.squared_error[i] + (forecast - actual).powi(2);
            self.squared_regret[i] = FADING * self.squared_regret[i] + regret * regret;
            self.regret_max[i] = (FADING * self.regret_max[i]).max(regret.abs());
            let rate = self.learning_rate(i);
            self.regret[i] = FADING * self.regret[i] + regret - rate * regret * regret;
        }
        self.reweigh();
    }

    /// 0 while an expert has never differed from the mix: nothing is known of it.
    fn learning_rate(&self, i: usize) -> f64 {
        if self.squared_regret[i] > 0.0 {
            (0.5 / self.regret_max[i]).min(((N as f64).ln() / self.squared_regret[i]).sqrt())
        } else {
            0.0
        }
    }

    fn reweigh(&mut self) {
        let rates: [f64; N] = std::array::from_fn(|i| self.learning_rate(i));
        let rate_max = rates.iter().copied().fold(0.0, f64::max);
        if rate_max <= 0.0 || !rate_max.is_finite() {
            return;
        }
        // An expert with no record yet takes the largest rate: it stays open to what comes.
        let exponents: [f64; N] = std::array::from_fn(|i| {
            let rate = if rates[i] > 0.0 { rates[i] } else { rate_max };
            (rate / rate_max).ln() + rate * self.regret[i]
        });
        let top = exponents.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let raw = exponents.map(|exponent| (exponent - top).exp());
        let sum: f64 = raw.iter().sum();
        if sum.is_finite() && sum > 0.0 {
            self.weights = raw.map(|weight| (1.0 - FIXED_SHARE) * weight / sum + FIXED_SHARE / N as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The regret bound in practice: the mix's loss ends near that of the best expert.
    #[test]
    fn comes_close_to_the_best_expert() {
        let mut mix = Mix::<3>::uniform();
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

    /// An expert that was the worst for long leads soon after it becomes the best.
    #[test]
    fn a_fallen_expert_comes_back() {
        let mut mix = Mix::<2>::uniform();
        for _ in 0..500 {
            mix.score(&[1.0, 0.0], 0.0);
        }
        assert!(mix.weights()[0] < 0.01);
        for _ in 0..200 {
            mix.score(&[1.0, 0.0], 1.0);
        }
        assert!(mix.weights()[0] > 0.9, "{:?}", mix.weights());
    }
}

//! Hysteresis: decides whether the gain of a better plan justifies a change.
//!
//! The gain is the gain in the *expected maximum* over recent forecast errors, judged as the split judges it: only the part
//! beyond its standard error counts. A plan is kept while what it has lost since it was made is less than the cost of a change,
//! `min_gain` of a step. If a worker really slows down, one iteration is enough; if equal workers are noisy, a plan that follows
//! the noise gains nothing, and no change is made; small gains that last add up.

use crate::allocate::{Scenarios, SplitWorker, significance};

/// Minimum gain, as a share of the step, while the forecast errors are not known yet.
const MIN_GAIN_WITHOUT_SCENARIOS: f64 = 0.2;
/// Number of scenarios with which a gain counts half. The best plan was chosen with the same scenarios that
/// evaluate it, which overestimates its gain; fewer scenarios overestimate it more.
const OVERFIT_SCENARIOS: f64 = 16.0;

/// Gain of a better plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gain {
    /// Share of the step time that the best plan saves, corrected for overestimation; negative if it is longer.
    pub corrected: f64,
    /// Sum of these gains since the plan in force was made, at least 0.
    pub lost: f64,
    /// Whether the best plan saves any time.
    is_shorter: bool,
}

impl Gain {
    /// Returns the gain of the `best` plan over the `held` plan, over the scenarios. `lost` is the sum of earlier gains.
    pub fn of(shares: &[SplitWorker], scenarios: &Scenarios, held: &[u64], best: &[u64], lost: f64) -> Self {
        let [held_s, best_s] = [held, best].map(|batches| match scenarios.is_empty() {
            true => vec![scenarios.expected_finish(shares, batches)],
            false => scenarios.finishes(shares, batches).collect::<Vec<f64>>(),
        });
        let sum_s: f64 = held_s.iter().sum();
        let gains: Vec<f64> = held_s.iter().zip(&best_s).map(|(held_s, best_s)| held_s - best_s).collect();
        let gain = gains.iter().sum::<f64>() / sum_s;
        let count = scenarios.len() as f64;
        let corrected = match () {
            () if !scenarios.is_empty() => gain * significance(&gains, env("SE1", 1.0)) * count / (count + OVERFIT_SCENARIOS),
            () if gain < MIN_GAIN_WITHOUT_SCENARIOS => 0.0,
            () => gain,
        };
        let certain = if scenarios.is_empty() { corrected } else { gain * significance(&gains, env("SE2", 2.0)) * count / (count + OVERFIT_SCENARIOS) };
        Self { corrected, lost: (lost + certain).max(0.0), is_shorter: gain > 0.0 }
    }

    /// Returns whether the plan in force has lost as much as a change costs, as a share of the step time.
    pub fn justifies_change(&self, min_gain: f64) -> bool {
        self.is_shorter && (self.corrected >= min_gain || self.lost >= env("THR", 4.0) * min_gain)
    }
}

fn env(name: &str, default: f64) -> f64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

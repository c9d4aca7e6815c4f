//! Hysteresis: decides whether the gain of a better plan justifies a change.
//!
//! The gain is the gain in the *expected maximum* over recent forecast errors, which is flat near the optimum: the scenarios of
//! the split. If equal workers are noisy, a plan that follows the noise gains almost nothing in
//! expectation, and a minimum gain of 2 % prevents the change. If a worker really slows down, the gain exceeds that minimum at once.
//! A smaller gain that lasts adds up, as far as it is certain, until it has paid for a change. Pauses and jumps of the speed are no
//! forecast errors, so a rare one keeps no plan in force.

use crate::allocate::{Scenarios, SplitWorker, significance};

/// Minimum gain, as a share of the step, while the forecast errors are not known yet.
const MIN_GAIN_WITHOUT_SCENARIOS: f64 = 0.2;
/// Number of scenarios with which a gain counts half. The best plan was chosen with the same scenarios that
/// evaluate it, which overestimates its gain; fewer scenarios overestimate it more.
const OVERFIT_SCENARIOS: f64 = 16.0;
/// Number of standard errors beyond which a gain is certain.
const CERTAIN: f64 = 2.0;
/// Sum of certain gains that pays for a change, in minimum gains.
const PAYS: f64 = 4.0;

/// Gain of a better plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gain {
    /// Share of the step time that the best plan saves, corrected for overestimation; negative if it is longer.
    pub corrected: f64,
    /// Sum of the certain gains since the plan in force was made, at least 0.
    pub lost: f64,
    /// Whether the best plan saves any time.
    is_shorter: bool,
}

impl Gain {
    /// Returns the gain of the `best` plan over the `held` plan, over the scenarios. `lost` is the sum of earlier gains; this one
    /// lasts for a number of `iterations`.
    pub fn of(
        shares: &[SplitWorker],
        scenarios: &Scenarios,
        [held, best]: [&[u64]; 2],
        lost: f64,
        iterations: f64,
    ) -> Self {
        let [held_s, best_s] = [held, best].map(|batches| match scenarios.is_empty() {
            true => vec![scenarios.expected_finish(shares, batches)],
            false => scenarios.finishes(shares, batches).collect::<Vec<f64>>(),
        });
        let sum_s: f64 = held_s.iter().sum();
        let gains: Vec<f64> = held_s.iter().zip(&best_s).map(|(held_s, best_s)| held_s - best_s).collect();
        let gain = gains.iter().sum::<f64>() / sum_s;
        let count = scenarios.len() as f64;
        let corrected = match () {
            () if !scenarios.is_empty() => gain * count / (count + OVERFIT_SCENARIOS),
            () if gain < MIN_GAIN_WITHOUT_SCENARIOS => 0.0,
            () => gain,
        };
        let certain = if scenarios.is_empty() { 1.0 } else { significance(&gains, CERTAIN) };
        Self { corrected, lost: (lost + iterations * corrected * certain).max(0.0), is_shorter: gain > 0.0 }
    }

    /// Returns whether the gain, or the sum of gains so far, reaches its minimum. `min_gain` is a share of the step time.
    pub fn justifies_change(&self, min_gain: f64) -> bool {
        self.is_shorter && (self.corrected >= min_gain || self.lost >= PAYS * min_gain)
    }
}

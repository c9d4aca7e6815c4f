//! Hysteresis: decides whether the gain of a better plan justifies a change.
//!
//! The gain is the gain in the *expected maximum* over recent forecast errors, which is flat near the
//! optimum. If equal workers are noisy, a plan that follows the noise gains almost nothing in expectation,
//! and a minimum gain of 2 % prevents the change. If a worker really slows down, the gain exceeds that
//! minimum at once.

use crate::allocate::{Scenarios, SplitWorker};

/// Minimum gain, as a share of the step, while the forecast errors are not known yet.
const MIN_GAIN_WITHOUT_SCENARIOS: f64 = 0.2;
/// Number of scenarios with which a gain counts half. The best plan was chosen with the same scenarios that
/// evaluate it, which overestimates its gain; fewer scenarios overestimate it more.
const OVERFIT_SCENARIOS: f64 = 16.0;

/// Gain of a better plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gain {
    /// Share of the step time that the best plan saves, corrected for overestimation.
    pub corrected: f64,
    /// Whether the best plan saves any time.
    is_shorter: bool,
}

impl Gain {
    /// Returns the gain of the `best` plan over the `held` plan, over the scenarios.
    pub fn of(shares: &[SplitWorker], scenarios: &Scenarios, held: &[u64], best: &[u64]) -> Self {
        let held_s = scenarios.expected_finish(shares, held);
        let best_s = scenarios.expected_finish(shares, best);
        let gain = 1.0 - best_s / held_s;
        let count = scenarios.len() as f64;
        let corrected = match () {
            () if !scenarios.is_empty() => gain * count / (count + OVERFIT_SCENARIOS),
            () if gain < MIN_GAIN_WITHOUT_SCENARIOS => 0.0,
            () => gain,
        };
        Self { corrected, is_shorter: best_s < held_s }
    }

    /// Returns whether the gain reaches the minimum, which is a share of the step time.
    pub fn justifies_change(&self, min_gain: f64) -> bool {
        self.is_shorter && self.corrected >= min_gain
    }
}

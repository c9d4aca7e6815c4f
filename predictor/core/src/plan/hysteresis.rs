//! When a better plan is worth a change.
//!
//! The gain is that of the *expected maximum* over the forecasts' recent errors, which is flat near the optimum: on noisy equal
//! workers a plan that follows the noise gains next to nothing in expectation, and a minimum gain of two percent holds it off.
//! A worker that really slowed down passes that minimum at once.

use super::rules::Objective;
use crate::allocate::{Scenarios, Share};

/// While the forecasts' errors are not known yet, a change must gain this share of the step.
const UNSURE_GAIN: f64 = 0.2;
/// The best plan was chosen by the very scenarios that judge it: fewer of them flatter it more. A gain over this many counts half.
const FLATTERED_SCENARIOS: f64 = 16.0;

/// What a better plan would bring.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gain {
    /// The share of the step that the best plan saves, as far as it can be believed.
    pub believed: f64,
    /// Whether it saves any time at all.
    is_shorter: bool,
}

impl Gain {
    /// The gain of the `best` plan over the `held` one, over the scenarios.
    pub fn of(
        shares: &[Share],
        scenarios: &Scenarios,
        objective: Objective,
        held: &[u64],
        best: &[u64],
    ) -> Self {
        let held_s = scenarios.expected_finish(shares, held);
        let best_s = scenarios.expected_finish(shares, best);
        let gain = 1.0 - best_s / held_s;
        let count = scenarios.len() as f64;
        let believed = match objective {
            Objective::Maximum => gain,
            Objective::ExpectedMaximum if !scenarios.is_empty() => {
                gain * count / (count + FLATTERED_SCENARIOS)
            }
            Objective::ExpectedMaximum if gain < UNSURE_GAIN => 0.0,
            Objective::ExpectedMaximum => gain,
        };
        Self { believed, is_shorter: best_s < held_s }
    }

    /// Whether the gain reaches the minimum, a share of the step.
    pub fn is_worth_a_change(&self, min_gain: f64) -> bool {
        self.is_shorter && self.believed >= min_gain
    }
}

//! When a better plan is worth a change.
//!
//! The gain is that of the *expected maximum* over the forecasts' recent errors, which is flat near the optimum: on noisy equal
//! workers a plan that follows the noise gains next to nothing in expectation, and is held off by a minimum gain of two percent;
//! a worker that really slowed down passes that at once. OmniLearn's dead-band, LBB's two speeds and AdaptDL's cost of a change
//! are the other rules, for those who want them.

use super::Objective;
use crate::allocate::{Scenarios, Share};

/// While the forecasts' errors are not known yet, a change must gain this share of the step.
const UNSURE_GAIN: f64 = 0.2;
/// The best plan was chosen by the very scenarios that judge it: fewer of them flatter it more. A gain over this many counts half.
const FLATTERED_SCENARIOS: f64 = 16.0;

/// What keeps an allocation from changing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calm {
    /// Hold while a new plan would shorten the expected step by less than this share.
    pub min_gain: f64,
    /// Hold while no share would change by more than this part of itself.
    pub dead_band: f64,
    /// Hold for at least so many iterations after a change.
    pub dwell: u64,
    /// What a change costs in seconds. It must be earned back within as many iterations as the plan in force has lasted: how
    /// long a plan has lasted is the best guess of how long the next will.
    pub change_cost_s: f64,
    /// No worker gets more than this many times the largest batch it was measured at; at least 1.
    pub trust: f64,
    /// While predicted finish times differ by less than this share, go half of the way only.
    pub fine_tune_below: f64,
}

impl Default for Calm {
    fn default() -> Self {
        Self {
            min_gain: 0.02,
            dead_band: 0.0,
            dwell: 0,
            change_cost_s: 0.0,
            trust: 2.0,
            fine_tune_below: 0.0,
        }
    }
}

/// What a better plan would bring.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gain {
    /// Expected step time under the plan in force, in seconds.
    pub held_s: f64,
    /// Expected step time under the best plan, in seconds.
    pub best_s: f64,
    /// The share of the step that the best plan saves, as far as it can be believed.
    pub believed: f64,
}

impl Gain {
    /// Of two plans over the scenarios.
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
        Self { held_s, best_s, believed }
    }
}

/// Why a better plan is held off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Hold {
    /// It would gain less than the rules ask for.
    GainTooSmall {
        /// The share of the step that it would have saved.
        gain: f64,
    },
    /// No share would change enough.
    DeadBand {
        /// The largest relative change of a share.
        change: f64,
    },
    /// The plan in force has not lasted long enough.
    Dwelling {
        /// Iterations that are left.
        left: u64,
    },
    /// A change costs more than it would earn.
    Costs {
        /// Seconds that it would save in each step.
        saves_s: f64,
    },
}

impl Calm {
    /// Whether the plan in force, which has lasted for so many iterations, is held against a better one, and by which rule.
    pub fn holds(&self, lasted: u64, held: &[u64], best: &[u64], gain: &Gain) -> Option<Hold> {
        let saves_s = gain.held_s - gain.best_s;
        let relative = |(held, best): (&u64, &u64)| held.abs_diff(*best) as f64 / (*held).max(1) as f64;
        let change = held.iter().zip(best).map(relative).fold(0.0, f64::max);
        if gain.believed < self.min_gain || saves_s <= 0.0 {
            Some(Hold::GainTooSmall { gain: gain.believed.max(0.0) })
        } else if change < self.dead_band {
            Some(Hold::DeadBand { change })
        } else if lasted < self.dwell {
            Some(Hold::Dwelling { left: self.dwell - lasted })
        } else if saves_s * (lasted.max(1) as f64) < self.change_cost_s {
            Some(Hold::Costs { saves_s })
        } else {
            None
        }
    }

    /// Whether the plan in force is nearly balanced, so that a change goes half of the way.
    pub fn goes_half_way(&self, shares: &[Share], held: &[u64]) -> bool {
        let finishes = || shares.iter().zip(held).map(|(share, batch)| share.finish_s(*batch));
        let (slowest, fastest) = (finishes().fold(0.0, f64::max), finishes().fold(f64::INFINITY, f64::min));
        slowest / fastest - 1.0 < self.fine_tune_below
    }
}

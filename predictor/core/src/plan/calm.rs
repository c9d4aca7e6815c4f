//! When a better plan is worth a change.
//!
//! The gain is that of the *expected maximum* over the forecasts' recent errors, which is flat near the optimum: on noisy equal
//! workers a plan that follows the noise gains next to nothing in expectation. And it must be beyond doubt: over the scenarios
//! its mean must pass [`SIGNIFICANT`] times its standard error, or [`UNSURE_GAIN`] while there are none. A worker that really
//! slowed down gains more than that at once. OmniLearn's dead-band, LBB's two speeds and AdaptDL's cost of a change are the other
//! rules, for those who want them.

use crate::allocate::{Scenarios, Share, finish_s};

/// Standard errors that the mean gain must lie above 0.
const SIGNIFICANT: f64 = 3.0;
/// While the forecasts' errors are not known yet, a change must gain this share of the step.
const UNSURE_GAIN: f64 = 0.1;

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

/// Expected step times in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// Under the plan in force.
    pub held_s: f64,
    /// Under the best plan.
    pub best_s: f64,
    /// What the best plan must save to be better beyond doubt.
    pub doubt_s: f64,
}

impl Times {
    /// Of two plans over the scenarios.
    pub fn of(shares: &[Share], scenarios: &Scenarios, held: &[u64], best: &[u64]) -> Self {
        if scenarios.is_empty() {
            let held_s = finish_s(shares, held);
            return Self { held_s, best_s: finish_s(shares, best), doubt_s: UNSURE_GAIN * held_s };
        }
        let count = scenarios.len() as f64;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
        let held: Vec<f64> = scenarios.finishes(shares, held).collect();
        let best: Vec<f64> = scenarios.finishes(shares, best).collect();
        let saved: Vec<f64> = held.iter().zip(&best).map(|(held, best)| held - best).collect();
        let mean_saved = mean(&saved);
        let squares: f64 = saved.iter().map(|saved| (saved - mean_saved).powi(2)).sum();
        // The best plan was chosen by these very scenarios: the more workers and the fewer scenarios, the more it flatters.
        let flattery = 1.0 + shares.len() as f64 / count;
        let doubt_s = SIGNIFICANT * flattery * (squares / (count - 1.0).max(1.0) / count).sqrt();
        Self { held_s: mean(&held), best_s: mean(&best), doubt_s }
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
    /// What it would gain is no more than what forecasts err by.
    Doubtful {
        /// The share of the step that it would save.
        gain: f64,
        /// The share that it would have to save.
        doubt: f64,
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
    pub fn holds(&self, lasted: u64, held: &[u64], best: &[u64], times: Times) -> Option<Hold> {
        let saves_s = times.held_s - times.best_s;
        let gain = saves_s / times.held_s;
        let relative = |(held, best): (&u64, &u64)| held.abs_diff(*best) as f64 / (*held).max(1) as f64;
        let change = held.iter().zip(best).map(relative).fold(0.0, f64::max);
        if gain < self.min_gain || saves_s <= 0.0 {
            Some(Hold::GainTooSmall { gain: gain.max(0.0) })
        } else if saves_s < times.doubt_s {
            Some(Hold::Doubtful { gain, doubt: times.doubt_s / times.held_s })
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

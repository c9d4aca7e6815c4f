//! A linear change of the multiplier over iterations.

use serde::{Deserialize, Serialize};

/// A linear change: `m(i) = from + (to - from) min(1, (i - start_iteration) / iterations)`.
///
/// # Examples
/// ```
/// use evenstep_core::learning_rate::Ramp;
///
/// let ramp = Ramp { from: 1.0, to: 4.0, start_iteration: 100, iterations: 32 };
/// assert_eq!(ramp.multiplier(116), 2.5);
/// assert_eq!(ramp.multiplier(132), 4.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ramp {
    /// Multiplier at its start.
    pub from: f64,
    /// Multiplier at its end.
    pub to: f64,
    /// First iteration of the ramp, which still has `from`.
    pub start_iteration: u64,
    /// Number of iterations of the ramp; with 0, the multiplier is `to` from the start.
    pub iterations: u64,
}

impl Ramp {
    /// Returns a constant multiplier from an iteration on.
    pub fn at_once(multiplier: f64, start_iteration: u64) -> Self {
        Self { from: multiplier, to: multiplier, start_iteration, iterations: 0 }
    }

    /// Returns the multiplier of an iteration. Before the start it is `from`, or `to` if the ramp has no
    /// iterations.
    pub fn multiplier(&self, iteration: u64) -> f64 {
        let done = iteration.saturating_sub(self.start_iteration);
        if done >= self.iterations {
            return self.to;
        }
        self.from + (self.to - self.from) * (done as f64 / self.iterations as f64)
    }

    /// Whether iterations from this one on still change the multiplier.
    pub fn is_active(&self, iteration: u64) -> bool {
        iteration.saturating_sub(self.start_iteration) < self.iterations
    }
}

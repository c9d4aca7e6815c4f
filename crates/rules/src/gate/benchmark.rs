//! Benchmark of the tasklets of an iteration, measured without background work.

use super::limit::Limit;
use super::verdict::{Gate, Kind};

/// Maximum number of tasklets per iteration; for tasklets beyond it the gate is closed.
pub const TASKLETS_MAX: usize = 4096;

/// Maximum number of times kept per tasklet.
pub const ROUNDS_MAX: usize = 32;

/// Times of tasklets, by their position in the iteration. A gate requires a benchmark.
#[derive(Debug, Clone, Default)]
pub struct Benchmark {
    tasklets: Vec<(Kind, Vec<f64>)>,
}

impl Benchmark {
    /// Records that the tasklet at this position took `took_us` microseconds.
    ///
    /// Positions must be reported in ascending order. These times are ignored:
    /// - times of a position at or beyond [`TASKLETS_MAX`], or after a skipped position,
    /// - times that are negative or not finite,
    /// - times beyond the first [`ROUNDS_MAX`] of a tasklet.
    pub fn observe(&mut self, place: usize, kind: Kind, took_us: f64) {
        if place == self.tasklets.len() && place < TASKLETS_MAX {
            self.tasklets.push((kind, Vec::new()));
        }
        let Some((_, times)) = self.tasklets.get_mut(place) else { return };
        if times.len() < ROUNDS_MAX && took_us.is_finite() && took_us >= 0.0 {
            times.push(took_us);
        }
    }

    /// Returns a gate that compares tasklets with the medians of their times. The median ignores single
    /// outliers.
    pub fn gate(self, limit: Limit) -> Gate {
        Gate::new(limit, self.tasklets.into_iter().map(|(kind, times)| (kind, median(times))))
    }
}

/// Returns the median, or 0 without values. A benchmark of 0 keeps the gate closed.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let half = times.len() / 2;
    let at = |place: usize| times.get(place).copied().unwrap_or(0.0);
    if times.len() % 2 == 1 { at(half) } else { (at(half.saturating_sub(1)) + at(half)) / 2.0 }
}

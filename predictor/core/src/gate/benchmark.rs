//! What the tasklets of an iteration take while nothing runs beside them.

use super::limit::Limit;
use super::verdict::{Gate, Kind};

/// Tasklets of one iteration that are told apart; beyond them the gate is closed.
pub const TASKLETS_MAX: usize = 4096;

/// Times that are kept of each.
pub const ROUNDS_MAX: usize = 32;

/// Times of tasklets, by their place in the iteration. There is no gate before there are some.
#[derive(Debug, Clone, Default)]
pub struct Benchmark {
    tasklets: Vec<(Kind, Vec<f64>)>,
}

impl Benchmark {
    /// The tasklet at this place took so many microseconds. Places are told in their order; one beyond [`TASKLETS_MAX`], or
    /// after a place that was left out, is not kept, nor is a time that is none, nor one beyond [`ROUNDS_MAX`].
    pub fn observe(&mut self, place: usize, kind: Kind, took_us: f64) {
        if place == self.tasklets.len() && place < TASKLETS_MAX {
            self.tasklets.push((kind, Vec::new()));
        }
        let Some((_, times)) = self.tasklets.get_mut(place) else { return };
        if times.len() < ROUNDS_MAX && took_us.is_finite() && took_us >= 0.0 {
            times.push(took_us);
        }
    }

    /// The gate that holds tasklets against the medians of their times: one hiccup is not what a tasklet takes.
    pub fn gate(self, limit: Limit) -> Gate {
        Gate::new(limit, self.tasklets.into_iter().map(|(kind, times)| (kind, median(times))))
    }
}

/// The median; 0 of nothing, which keeps the gate closed.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let half = times.len() / 2;
    let at = |place: usize| times.get(place).copied().unwrap_or(0.0);
    if times.len() % 2 == 1 { at(half) } else { (at(half.saturating_sub(1)) + at(half)) / 2.0 }
}

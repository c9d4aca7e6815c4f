//! The search for the smallest finish time, and who takes what at it.

use super::Problem;

/// The optimal split of the whole quanta.
pub(super) fn split(problem: &Problem<'_>) -> Vec<u64> {
    let count = problem.shares.len();
    let at = |time_s: f64| (0..count).map(move |i| problem.most(i, time_s));
    let holds = |time_s: f64| at(time_s).fold(0u64, u64::saturating_add) >= problem.whole;
    // Positive floats order as their bits. `high` always holds the total. Floors may end later than this search does.
    let mut low = 0.0f64.to_bits();
    let mut high = super::finish_s(problem.shares, &problem.caps).to_bits();
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(f64::from_bits(middle)) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let time_s = f64::from_bits(high);
    let least: Vec<u64> = at(time_s.next_down()).collect();
    let most: Vec<u64> = at(time_s).collect();
    level(&least, &most, problem.whole, problem.quantum)
}

/// Batches between `least` and `most`, of the given sum, whose largest is as small as can be: they are filled up to a
/// level, and of those that pass it by a quantum the lower ranks do. All are multiples of the quantum.
pub(super) fn level(least: &[u64], most: &[u64], total: u64, quantum: u64) -> Vec<u64> {
    let filled = |level: u64| least.iter().zip(most).map(move |(least, most)| level.clamp(*least, *most));
    let (mut low, mut high) = (0, most.iter().copied().max().unwrap_or(0) / quantum);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if filled(middle * quantum).fold(0u64, u64::saturating_add) <= total {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    let mut batches: Vec<u64> = filled(low * quantum).collect();
    let mut left = total.saturating_sub(batches.iter().fold(0u64, |sum, batch| sum.saturating_add(*batch)));
    for (batch, most) in batches.iter_mut().zip(most) {
        if left >= quantum && *batch == low * quantum && *batch < *most {
            *batch += quantum;
            left -= quantum;
        }
    }
    batches
}

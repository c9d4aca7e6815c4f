//! The split under uncertainty: the smallest expected maximum, not the smallest maximum of expectations.

use super::{Infeasible, Scenarios, Share, allocate};

/// The most workers that are weighed against each other; more get the plain split.
pub const MAX_WORKERS: usize = 256;

/// Splits `total` samples such that the expected time of the step over the scenarios is small.
///
/// # Errors
/// As [`allocate`].
pub fn allocate_expected(
    shares: &[Share],
    scenarios: &Scenarios,
    total: u64,
    quantum: u64,
) -> Result<Vec<u64>, Infeasible> {
    let quantum = quantum.max(1);
    let mut best = allocate(shares, total, quantum)?;
    if scenarios.is_empty() || shares.len() > MAX_WORKERS {
        return Ok(best);
    }
    let mut best_s = scenarios.expected_finish(shares, &best);
    let mut step = (best.iter().max().unwrap_or(&0) / quantum).next_power_of_two();
    while step > 0 {
        let samples = step * quantum;
        for from in 0..shares.len() {
            for to in (0..shares.len()).filter(|to| *to != from) {
                let fits = best[from] >= shares[from].floor.next_multiple_of(quantum) + samples
                    && shares[to].cap.is_none_or(|cap| best[to] + samples <= cap);
                if !fits {
                    continue;
                }
                best[from] -= samples;
                best[to] += samples;
                let time_s = scenarios.expected_finish(shares, &best);
                if time_s < best_s {
                    best_s = time_s;
                } else {
                    best[from] += samples;
                    best[to] -= samples;
                }
            }
        }
        step /= 2;
    }
    Ok(best)
}

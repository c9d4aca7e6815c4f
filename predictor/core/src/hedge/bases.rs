//! Bases: the samples that each worker can complete with high certainty by the time at which all workers
//! together finish the batch.
//!
//! If the factors of a scenario w were known, each worker would compute for the time `T_w = total / sum_k(v_k
//! / f_wk)`, in which worker i completes `x_wi = v_i / f_wi * T_w` samples. This number varies over the
//! scenarios with the forecast errors. Its minimum is close to the planned batch if the worker's forecasts
//! are accurate, and small if they are not.

use crate::allocate::{Scenarios, SplitWorker};

/// Returns for each worker, by rank, the minimum of `x_wi` over the scenarios, in samples. Each worker's
/// speed is its speed at its batch in `batches`.
pub fn min_completed(shares: &[SplitWorker], batches: &[u64], scenarios: &Scenarios) -> Vec<f64> {
    let total: u64 = batches.iter().sum();
    let speed = |(share, batch): (&SplitWorker, &u64)| {
        let batch = (*batch).max(1);
        batch as f64 / share.finish_s(batch)
    };
    let speeds: Vec<f64> = shares.iter().zip(batches).map(speed).collect();
    let mut least = vec![f64::INFINITY; shares.len()];
    for factors in scenarios.rows() {
        let scaled = || speeds.iter().zip(factors).map(|(speed, factor)| speed / factor);
        let time_s = total as f64 / scaled().sum::<f64>();
        for (least, speed) in least.iter_mut().zip(scaled()) {
            *least = least.min(speed * time_s);
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::Curve;

    /// Computed by hand: a worker that is half as fast in every second scenario completes a third of the
    /// samples of two workers there, not half.
    #[test]
    fn golden() {
        let swings: Vec<f64> = (0..8).map(|k| if k % 2 == 0 { -(2f64.ln()) } else { 0.0 }).collect();
        let scenarios = Scenarios::from_residuals(&[swings, vec![0.0; 8]]);
        let shares = vec![SplitWorker::new(Curve::at_speed(10.0)); 2];
        let parts = min_completed(&shares, &[30, 30], &scenarios);
        assert!((parts[0] - 20.0).abs() < 1e-9 && (parts[1] - 30.0).abs() < 1e-9, "{parts:?}");
    }
}

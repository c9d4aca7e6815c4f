//! Bases: what each worker will surely do by the time that all together are done.
//!
//! Were the factors of a scenario known, worker i would do its part of the batch in the time in which all do theirs,
//! `T_w = total / sum_k(v_k / f_wk)`: that is `x_wi = v_i / f_wi * T_w` samples. Over the scenarios this part varies as the
//! forecasts err: its least value is near what is planned for a worker whose forecast is good, and little for one of which
//! anything may come.

use crate::allocate::{Scenarios, Share};

/// The least part of each worker over the scenarios, by rank, in samples: around these batches, at the speed that each worker
/// has at its own.
pub fn least_parts(shares: &[Share], batches: &[u64], scenarios: &Scenarios) -> Vec<f64> {
    let total: u64 = batches.iter().sum();
    let speed = |(share, batch): (&Share, &u64)| {
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

    /// By hand: twice as slow in every second scenario, a worker does a third of what two do together, not half.
    #[test]
    fn golden() {
        let swings: Vec<f64> = (0..8).map(|k| if k % 2 == 0 { -(2f64.ln()) } else { 0.0 }).collect();
        let scenarios = Scenarios::from_residuals(&[swings, vec![0.0; 8]]);
        let shares = vec![Share::new(Curve::at_speed(10.0)); 2];
        let parts = least_parts(&shares, &[30, 30], &scenarios);
        assert!((parts[0] - 20.0).abs() < 1e-9 && (parts[1] - 30.0).abs() < 1e-9, "{parts:?}");
    }
}

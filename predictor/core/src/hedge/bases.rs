//! Bases: what each worker will surely do by the time that all together are done.
//!
//! Were the factors of a scenario known, worker i would do its part of the batch in the time in which all do theirs,
//! `T_w = total / sum_k(v_k / f_wk)`: that is `x_wi = v_i / f_wi * T_w` samples. Over the scenarios this part varies as the
//! forecasts err, and a low quantile of it is the base: near all of it for a worker whose forecast is good, little for one
//! of which anything may come.

use crate::allocate::{Scenarios, Share};

/// For each scenario the part of each worker, by rank; row by row.
#[derive(Debug)]
pub struct Parts {
    workers: usize,
    parts: Vec<f64>,
}

impl Parts {
    /// Around these batches, at the speed that each worker has at its own.
    pub fn new(shares: &[Share], batches: &[u64], scenarios: &Scenarios) -> Self {
        let total: u64 = batches.iter().sum();
        let speed = |(share, batch): (&Share, &u64)| {
            let batch = (*batch).max(1);
            batch as f64 / share.finish_s(batch)
        };
        let speeds: Vec<f64> = shares.iter().zip(batches).map(speed).collect();
        let part = |factors: &[f64]| -> Vec<f64> {
            let scaled: Vec<f64> = speeds.iter().zip(factors).map(|(speed, factor)| speed / factor).collect();
            let time_s = total as f64 / scaled.iter().sum::<f64>();
            scaled.into_iter().map(|speed| speed * time_s).collect()
        };
        let mut parts: Vec<f64> = scenarios.rows().flat_map(part).collect();
        // By worker, rising: quantiles are looked up.
        let workers = shares.len();
        parts = (0..workers)
            .flat_map(|worker| {
                let mut own: Vec<f64> = parts.iter().skip(worker).step_by(workers).copied().collect();
                own.sort_by(f64::total_cmp);
                own
            })
            .collect();
        Self { workers, parts }
    }

    /// The part that a worker falls short of in this share of the scenarios.
    pub fn quantile(&self, worker: usize, share: f64) -> f64 {
        let count = self.parts.len() / self.workers;
        let at = (share * count as f64) as usize;
        self.parts[worker * count + at.min(count - 1)]
    }
}

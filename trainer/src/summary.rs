//! What the iterations of one policy come to, for the closing line.

use crate::narrator::Step;

/// Iterations at the begin that do not count: caches are cold and workers unmeasured.
const WARM_UP: usize = 5;

/// Iterations kept for the quantiles; the earliest are overwritten after that.
const KEPT_MAX: usize = 100_000;

/// Sums over iterations.
#[derive(Debug, Default)]
pub struct Summary {
    iterations: usize,
    samples: u64,
    seconds: f64,
    ideal_seconds: f64,
    waited_s: f64,
    step_times_s: Vec<f64>,
    asks_s: Vec<f64>,
}

impl Summary {
    /// Counts an iteration in.
    pub fn add(&mut self, step: &Step<'_>) {
        self.iterations += 1;
        if self.iterations <= WARM_UP {
            return;
        }
        let reports = &step.reduced.reports;
        let busy = reports.iter().filter(|report| report.local_batch > 0);
        let speed: f64 = busy.map(|report| report.local_batch as f64 / report.compute_time_s).sum();
        let waited: f64 = (0..reports.len()).map(|rank| step.reduced.barrier_wait_s(rank)).sum();
        self.samples += step.size;
        self.seconds += step.step_time_s;
        self.ideal_seconds += step.size as f64 / speed;
        self.waited_s += waited / reports.len() as f64;
        let slot = (self.iterations - WARM_UP - 1) % KEPT_MAX;
        for (kept, value) in
            [(&mut self.step_times_s, step.step_time_s), (&mut self.asks_s, step.planned.ask_s)]
        {
            kept.truncate(KEPT_MAX);
            if slot < kept.len() { kept[slot] = value } else { kept.push(value) }
        }
    }

    /// In words; none when nothing but warm-up was seen.
    pub fn describe(&self) -> Option<String> {
        let [p50, p95] = [0.5, 0.95].map(|share| quantile(&self.step_times_s, share));
        let (p50, p95) = (p50? * 1e3, p95? * 1e3);
        let ask = quantile(&self.asks_s, 0.5)? * 1e3;
        Some(format!(
            "{:.0} samples/s ({:.1} % of the sum of the speeds), step p50 {p50:.1} ms, p95 {p95:.1} ms, {:.1} % of it \
             waiting, ask p50 {ask:.2} ms",
            self.samples as f64 / self.seconds,
            100.0 * self.ideal_seconds / self.seconds,
            100.0 * self.waited_s / self.seconds,
        ))
    }
}

/// The value that a share of the values do not pass.
fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut ordered = values.to_vec();
    ordered.sort_by(f64::total_cmp);
    let last = ordered.len().checked_sub(1)?;
    ordered.get((share * last as f64).round() as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_known_values() {
        let values: Vec<f64> = (0..101).rev().map(f64::from).collect();
        assert_eq!(
            [0.0, 0.5, 0.95, 1.0].map(|share| quantile(&values, share)),
            [Some(0.0), Some(50.0), Some(95.0), Some(100.0)]
        );
        assert_eq!(quantile(&[], 0.5), None);
    }
}

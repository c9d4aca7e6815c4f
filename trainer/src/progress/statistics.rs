//! Statistics of one policy's iterations.

use std::fmt;

use evenstep_protocol::TailReport;

use super::lines::{IterationLine, WorkerLine};

/// Warm-up iterations, which are not counted, for every policy: caches are cold and workers unmeasured.
pub const WARM_UP: usize = 5;

/// Number of iterations kept for the quantiles; later ones overwrite the earliest.
const KEPT_MAX: usize = 100_000;

/// Sums over iterations.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    iterations: usize,
    samples: u64,
    seconds: f64,
    ideal_seconds: f64,
    waited_s: f64,
    requested_s: f64,
    claimed_s: f64,
    chunk_overhead_s: f64,
    chunks: u64,
    tail_samples: u64,
    passes: u64,
    step_times_s: Vec<f64>,
    requests_s: Vec<f64>,
}

/// Statistics of the counted iterations.
#[derive(Debug, Clone, PartialEq)]
pub struct Statistics {
    /// Number of counted iterations.
    pub iterations: usize,
    /// Samples divided by step time.
    pub throughput_samples_per_s: f64,
    /// Sum of the workers' measured speeds: the throughput if no worker ever waited.
    pub ideal_throughput_samples_per_s: f64,
    /// Mean step time in seconds.
    pub step_mean_s: f64,
    /// Mean wait of a worker for the slowest one, per step, in seconds.
    pub barrier_wait_s: f64,
    /// Share of all workers' time that they waited for the slowest one.
    pub barrier_wait_share: f64,
    /// Share of the step time to request and broadcast the allocation.
    pub request_share: f64,
    /// Share of all workers' time that they waited for responses to their claims.
    pub claim_share: f64,
    /// Share of all workers' time that chunks took beyond the time of the same number of samples at the
    /// worker's base pace in the same step. A speed change within the step also shows here, as a positive or
    /// negative value.
    pub chunk_overhead_share: f64,
    /// Mean number of claimed chunks per step.
    pub chunks: f64,
    /// Share of all samples that were claimed.
    pub tail_share: f64,
    /// Mean number of forward and backward passes per step over all workers; 0 in records of older versions.
    pub passes: f64,
    /// Median request time in seconds.
    pub request_p50_s: f64,
    step_times_s: Vec<f64>,
}

impl Tally {
    /// Adds an iteration.
    pub fn add(&mut self, line: &IterationLine) {
        self.iterations += 1;
        if self.iterations <= WARM_UP {
            return;
        }
        let waited_s: f64 = line.workers.iter().map(|worker| worker.barrier_wait_s).sum();
        self.samples += line.global_batch;
        self.seconds += line.step_time_s;
        self.ideal_seconds += ideal_step_time_s(line);
        self.waited_s += waited_s / line.workers.len() as f64;
        self.requested_s += line.request_s;
        for (worker, tail) in line.workers.iter().filter_map(|worker| Some((worker, worker.tail?))) {
            self.claimed_s += tail.claim_time_s / line.workers.len() as f64;
            self.chunk_overhead_s += chunk_overhead_s(worker, &tail) / line.workers.len() as f64;
            self.chunks += tail.chunks;
            self.tail_samples += tail.samples;
        }
        self.passes += line.workers.iter().filter_map(|worker| worker.micro_batches).sum::<u64>();
        let slot = (self.iterations - WARM_UP - 1) % KEPT_MAX;
        for (kept, value) in
            [(&mut self.step_times_s, line.step_time_s), (&mut self.requests_s, line.request_s)]
        {
            if slot < kept.len() { kept[slot] = value } else { kept.push(value) }
        }
    }

    /// Returns the statistics, or `None` if all iterations were warm-up.
    pub fn statistics(&self) -> Option<Statistics> {
        let request_p50_s = quantile(&self.requests_s, 0.5)?;
        let steps = (self.iterations - WARM_UP) as f64;
        Some(Statistics {
            request_p50_s,
            iterations: self.iterations - WARM_UP,
            step_mean_s: self.seconds / steps,
            barrier_wait_s: self.waited_s / steps,
            throughput_samples_per_s: self.samples as f64 / self.seconds,
            ideal_throughput_samples_per_s: self.samples as f64 / self.ideal_seconds,
            barrier_wait_share: self.waited_s / self.seconds,
            request_share: self.requested_s / self.seconds,
            claim_share: self.claimed_s / self.seconds,
            chunk_overhead_share: self.chunk_overhead_s / self.seconds,
            chunks: self.chunks as f64 / steps,
            tail_share: self.tail_samples as f64 / self.samples as f64,
            passes: self.passes as f64 / steps,
            step_times_s: self.step_times_s.clone(),
        })
    }
}

impl Statistics {
    /// Returns this quantile of the step times, in seconds.
    pub fn step_time_s(&self, share: f64) -> f64 {
        quantile(&self.step_times_s, share).unwrap_or(f64::NAN)
    }

    /// Returns the throughput as a share of the ideal throughput.
    pub fn share_of_ideal(&self) -> f64 {
        self.throughput_samples_per_s / self.ideal_throughput_samples_per_s
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} samples/s ({:.1} % of the sum of the speeds), step p50 {:.1} ms, p95 {:.1} ms, {:.1} % of it waiting, ask \
             p50 {:.2} ms",
            self.throughput_samples_per_s,
            100.0 * self.share_of_ideal(),
            1e3 * self.step_time_s(0.5),
            1e3 * self.step_time_s(0.95),
            100.0 * self.barrier_wait_share,
            1e3 * self.request_p50_s,
        )?;
        if self.claim_share > 0.0 {
            write!(f, ", {:.1} % of it claiming", 100.0 * self.claim_share)?;
        }
        Ok(())
    }
}

/// Returns the time of a worker's chunks beyond the time of their samples at its base pace; 0 without a base.
fn chunk_overhead_s(worker: &WorkerLine, tail: &TailReport) -> f64 {
    let base = worker.local_batch.saturating_sub(tail.samples);
    if base == 0 {
        return 0.0;
    }
    let pace_s = (worker.compute_time_s - tail.compute_time_s) / base as f64;
    tail.compute_time_s - pace_s * tail.samples as f64
}

/// Returns the step time if every worker had been busy to the end, at the measured speeds. A worker without
/// samples has no measured speed and adds none.
fn ideal_step_time_s(line: &IterationLine) -> f64 {
    let busy = line.workers.iter().filter(|worker| worker.local_batch > 0);
    let speed: f64 = busy.map(|worker| worker.local_batch as f64 / worker.compute_time_s).sum();
    line.global_batch as f64 / speed
}

/// Returns the smallest value that this share of the values does not exceed, or `None` without values.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut ordered = values.to_vec();
    ordered.sort_by(f64::total_cmp);
    let last = ordered.len().checked_sub(1)?;
    ordered.get((share * last as f64).round() as usize).copied()
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::WorkerId;

    use super::*;
    use crate::plan::Policy;

    fn line(iteration: u64, step_time_s: f64, workers: &[(u64, f64)]) -> IterationLine {
        let slowest = workers.iter().map(|(_, time)| *time).fold(0.0, f64::max);
        let worker = |(rank, &(local_batch, compute_time_s)): (usize, &(u64, f64))| WorkerLine {
            worker: WorkerId::new(format!("node/{rank}")).unwrap(),
            local_batch,
            compute_time_s,
            micro_batches: None,
            tail: None,
            barrier_wait_s: slowest - compute_time_s,
            loader_wait_s: 0.0,
            predicted_compute_time_s: None,
            predicted_speed_samples_per_s: None,
            speed_lower_samples_per_s: None,
            speed_upper_samples_per_s: None,
            drivers: Default::default(),
        };
        IterationLine {
            policy: Policy::Even,
            iteration,
            epoch: 0,
            at_s: 0.0,
            global_batch: workers.iter().map(|(batch, _)| batch).sum(),
            lr_multiplier: None,
            schedule_iteration: None,
            step_time_s,
            request_s: step_time_s / 100.0,
            round_trip_s: None,
            server_s: None,
            all_reduce_s: 0.0,
            loss: 1.0,
            generation: None,
            decision: None,
            gradient_difference: None,
            workers: workers.iter().enumerate().map(worker).collect(),
        }
    }

    #[test]
    fn an_even_split_over_paces_1_2_2_4_reaches_four_ninths_of_the_ideal() {
        let mut tally = Tally::default();
        for iteration in 0..WARM_UP as u64 {
            tally.add(&line(iteration, 99.0, &[(90, 99.0); 4]));
            assert_eq!(tally.statistics(), None);
        }
        for iteration in 0..8 {
            tally.add(&line(iteration, 0.36, &[(90, 0.36), (90, 0.18), (90, 0.18), (90, 0.09)]));
        }
        let statistics = tally.statistics().unwrap();
        let close = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-9, "{value}");
        assert_eq!(statistics.iterations, 8);
        close(statistics.throughput_samples_per_s, 1000.0);
        close(statistics.ideal_throughput_samples_per_s, 2250.0);
        close(statistics.share_of_ideal(), 4.0 / 9.0);
        // (0 + 0.18 + 0.18 + 0.27) / 4 of 0.36
        close(statistics.barrier_wait_share, 0.4375);
        close(statistics.barrier_wait_s, 0.4375 * 0.36);
        close(statistics.step_mean_s, 0.36);
        close(statistics.request_share, 0.01);
    }

    #[test]
    fn a_worker_without_samples_adds_no_speed() {
        let idle = line(0, 0.2, &[(60, 0.2), (0, 0.0)]);
        assert_eq!(ideal_step_time_s(&idle), 0.2);
    }

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

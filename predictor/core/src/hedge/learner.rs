//! Learns the costs of chunks and claims from the workers' reports.
//!
//! A chunk takes longer than its samples alone would, because each pass has fixed costs. Within one iteration
//! a worker has about the same contention in its base as in its chunks, so these costs are the only
//! difference between the two. No model of contention or of the choice of batches is needed. Costs are
//! counted in samples, which makes them independent of contention.

use serde::{Deserialize, Serialize};

use super::play::TailWork;
use crate::curve::CurveLearner;
use crate::series::{LEARNABLE, Observation};

/// Factor by which an iteration reduces the weight of earlier ones. It ensures that a few bad iterations do
/// not exclude a worker from tails permanently.
const FORGETTING: f64 = 0.97;

/// Weight of the prior: this number of chunks without extra cost, and of claims of [`CLAIM_FIRST_S`].
const PRIOR: f64 = 4.0;

/// Assumed time of a claim before the first one is measured, in seconds.
pub const CLAIM_FIRST_S: f64 = 5e-4;

/// Divisor of a worker's batch that gives its smallest chunk before it has computed any.
const FIRST_PART: u64 = 16;

/// Maximum magnitude of a number in a stored cost.
const NUMBER_MAX: f64 = 1e100;

/// Cost of chunks for one worker. The sums decay with each iteration; the prior does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ChunkCost {
    /// Number of chunks, and their cost in samples in addition to their own samples.
    chunks: f64,
    extra: f64,
    /// Number of claims, and their total time in seconds.
    claims: f64,
    claim_s: f64,
    /// Smallest average chunk of any iteration, in samples.
    smallest: Option<f64>,
}

/// Base and chunks of one worker in one iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parts {
    /// Samples of the base.
    pub base: u64,
    /// Compute time of the base in seconds.
    pub base_s: f64,
    /// The claimed part.
    pub tail: TailWork,
}

impl Parts {
    /// Updates a curve with the base and then with an average chunk, which has the same contention as the
    /// base.
    ///
    /// `forecast` is the forecast speed by which the base was chosen. Curves describe whole batches and whole
    /// chunks; the number of passes in which a worker computes them does not matter.
    pub fn measure(&self, curve: &mut CurveLearner, forecast: Option<f64>) {
        curve.measure(self.base, self.base_s, forecast);
        if let Some((chunk, count)) = self.chunks() {
            curve.measure(chunk, self.tail.compute_s / count, None);
        }
    }

    /// Returns one observation of the worker's speed from base and chunks, in [`CurveLearner::work`] per
    /// second; `None` if nothing was computed.
    pub fn observation(&self, curve: &CurveLearner) -> Option<Observation> {
        let base = if self.base > 0 { curve.work(self.base) } else { 0.0 };
        let tail = self.chunks().map_or(0.0, |(chunk, count)| count * curve.work(chunk));
        Observation::new(base + tail, self.base_s + self.tail.compute_s)
    }

    /// Returns all samples: of the base and of the tail.
    pub fn units(&self) -> u64 {
        self.base.saturating_add(self.tail.samples)
    }

    /// Returns the average samples of a chunk, rounded and at least 1, and the number of such chunks in the
    /// tail, as a real number so that rounding loses no samples.
    fn chunks(&self) -> Option<(u64, f64)> {
        let TailWork { samples, chunks, .. } = self.tail;
        let chunk = ((samples as f64 / chunks.max(1) as f64).round() as u64).max(1);
        (samples > 0).then(|| (chunk, samples as f64 / chunk as f64))
    }
}

impl ChunkCost {
    /// Records an iteration. Without a base or without chunks, it only reduces the weight of earlier
    /// iterations.
    pub fn observe(&mut self, parts: &Parts) {
        for sum in [&mut self.chunks, &mut self.extra, &mut self.claims, &mut self.claim_s] {
            *sum *= FORGETTING;
        }
        let Parts { base, base_s, tail } = parts;
        let is_measured = |samples: u64, time_s: f64| Observation::new(samples as f64, time_s).is_some();
        let is_claim = (0.0..=*LEARNABLE.end()).contains(&tail.claim_s);
        if tail.chunks == 0
            || !is_measured(*base, *base_s)
            || !is_measured(tail.samples, tail.compute_s)
            || !is_claim
        {
            return;
        }
        let (samples, chunks) = (tail.samples as f64, tail.chunks as f64);
        let pace_s = base_s / *base as f64;
        self.chunks += chunks;
        self.extra += tail.compute_s / pace_s - samples;
        // The last claim gets no chunk.
        self.claims += chunks + 1.0;
        self.claim_s += tail.claim_s;
        let chunk = samples / chunks;
        self.smallest = Some(self.smallest.map_or(chunk, |smallest| smallest.min(chunk)));
    }

    /// Whether a stored cost is usable.
    pub(crate) fn is_valid(&self) -> bool {
        let sums = [self.chunks, self.claims, self.claim_s, self.smallest.unwrap_or(1.0)];
        sums.iter().all(|sum| (0.0..=NUMBER_MAX).contains(sum)) && self.extra.abs() <= NUMBER_MAX
    }

    /// Returns the cost of a chunk in samples, in addition to its own samples.
    pub fn overhead(&self) -> f64 {
        (self.extra / (self.chunks + PRIOR)).max(0.0)
    }

    /// Returns the time of a claim in seconds.
    pub fn claim_s(&self) -> f64 {
        (self.claim_s + PRIOR * CLAIM_FIRST_S) / (self.claims + PRIOR)
    }

    /// Returns the smallest chunk to try on a worker with such a batch: half of the smallest chunk computed
    /// so far, so that an unknown cost is approached step by step.
    pub fn min_trial_chunk(&self, batch: u64) -> u64 {
        let known = self.smallest.map(|smallest| (smallest / 2.0) as u64);
        known.unwrap_or(batch / FIRST_PART).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 40 samples in 0.7 s, then 20 in four chunks in 0.2 s.
    fn parts() -> Parts {
        let tail = TailWork { samples: 20, chunks: 4, compute_s: 0.2, claim_s: 0.01 };
        Parts { base: 40, base_s: 0.7, tail }
    }

    #[test]
    fn a_base_and_the_mean_chunk_teach_a_curve() {
        let (mut curve, mut same) = (CurveLearner::new(), CurveLearner::new());
        parts().measure(&mut curve, None);
        same.observe(40, 0.7);
        same.observe(5, 0.05);
        assert_eq!(curve, same);
        let seen = parts().observation(&curve).unwrap();
        assert_eq!((seen.batch, seen.compute_time_s), (60.0, 0.7 + 0.2));
        let uneven = Parts { tail: TailWork { chunks: 3, ..parts().tail }, ..parts() };
        assert!((uneven.observation(&curve).unwrap().batch - 60.0).abs() < 1e-12, "chunks of 6 2/3");
        let nothing = Parts { base: 0, base_s: 0.0, tail: TailWork::default() };
        nothing.measure(&mut curve, None);
        assert_eq!((curve, nothing.observation(&CurveLearner::new())), (same, None));
    }

    /// Computed by hand: 17.5 ms for a sample of the base, 20 ms for a sample of the tail. Four chunks cost
    /// 400 / 17.5 - 20 samples more; the prior counts another four chunks without extra cost.
    #[test]
    fn the_cost_of_chunks_is_learned_per_iteration_and_decays() {
        let mut cost = ChunkCost::default();
        let close =
            |value: f64, expected: f64| assert!((value - expected).abs() < 1e-12, "{value}, {expected}");
        assert_eq!((cost.overhead(), cost.claim_s(), cost.min_trial_chunk(100)), (0.0, CLAIM_FIRST_S, 6));
        let slow = TailWork { compute_s: 0.4, ..parts().tail };
        cost.observe(&Parts { tail: slow, ..parts() });
        let overhead = (0.4 / 0.0175 - 20.0) / 8.0;
        close(cost.overhead(), overhead);
        close(cost.claim_s(), (0.01 + 4.0 * CLAIM_FIRST_S) / 9.0);
        assert_eq!(cost.min_trial_chunk(100), 2);
        let whole = Parts { tail: TailWork::default(), ..parts() };
        (0..200).for_each(|_| cost.observe(&whole));
        assert!(cost.overhead() < overhead / 100.0, "it is tried again");
    }
}

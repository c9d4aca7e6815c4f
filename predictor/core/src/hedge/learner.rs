//! What tails cost, learned from what workers report of them.
//!
//! A chunk takes longer than its samples alone would: a pass over few samples has fixed costs. Within one iteration a worker
//! is about as contended in its base as in its chunks, so that the two differ by this alone: no model of contention is
//! needed, and none of how batches were chosen. It counts in samples, so that it is the same however contended the worker is.

use serde::{Deserialize, Serialize};

use super::play::Took;
use crate::curve::CurveLearner;
use crate::series::Observation;

/// What an iteration leaves of the weight of those before: one bad day must not keep a worker from tails for ever.
const FORGETTING: f64 = 0.97;

/// So many chunks that cost nothing beside their samples, and so many claims of [`CLAIM_FIRST_S`], are believed at first.
const PRIOR: f64 = 4.0;

/// What a claim takes while nobody has claimed, in seconds.
pub const CLAIM_FIRST_S: f64 = 5e-4;

/// Chunks are no smaller than this part of a worker's batch before it has computed any.
const FIRST_PART: u64 = 16;

/// What chunks cost a worker. Sums fade; what is believed at first does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ChunkCost {
    /// Chunks, and the samples that they cost beside their own.
    chunks: f64,
    extra: f64,
    /// Claims, and their seconds.
    claims: f64,
    claim_s: f64,
    /// The smallest chunks, on average over an iteration, that it has computed.
    smallest: Option<f64>,
}

/// Of one worker's iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parts {
    /// Samples of its base.
    pub base: u64,
    /// Seconds that they took.
    pub base_s: f64,
    /// What it claimed.
    pub tail: Took,
}

impl Parts {
    /// Lets a curve learn: the base, and then a chunk as they were on average, which meets the contention of the base.
    /// `forecast` is what the base was chosen by. In how many passes a worker computes a batch is its own affair: its curve is of
    /// whole batches, and whole chunks.
    pub fn measure(&self, curve: &mut CurveLearner, forecast: Option<f64>) {
        curve.measure(self.base, self.base_s, forecast);
        if let Some((chunk, count)) = self.chunks() {
            curve.measure(chunk, self.tail.compute_s / count, None);
        }
    }

    /// What all of it says of the worker's speed, in [`CurveLearner::work`]. `None` where it says nothing.
    pub fn observation(&self, curve: &CurveLearner) -> Option<Observation> {
        let base = if self.base > 0 { curve.work(self.base) } else { 0.0 };
        let tail = self.chunks().map_or(0.0, |(chunk, count)| count * curve.work(chunk));
        Observation::new(base + tail, self.base_s + self.tail.compute_s)
    }

    /// The samples of a chunk on average, rounded, at least 1; and how many of these the tail is worth, so that rounding loses none.
    fn chunks(&self) -> Option<(u64, f64)> {
        let Took { samples, chunks, .. } = self.tail;
        let chunk = ((samples as f64 / chunks.max(1) as f64).round() as u64).max(1);
        (samples > 0).then(|| (chunk, samples as f64 / chunk as f64))
    }
}

impl ChunkCost {
    /// Takes how an iteration went; without a base or a chunk it says nothing, and what was learned fades.
    pub fn observe(&mut self, parts: &Parts) {
        for sum in [&mut self.chunks, &mut self.extra, &mut self.claims, &mut self.claim_s] {
            *sum *= FORGETTING;
        }
        let Parts { base, base_s, tail } = parts;
        if *base == 0 || tail.chunks == 0 || !(*base_s > 0.0 && tail.compute_s > 0.0) {
            return;
        }
        let (samples, chunks) = (tail.samples as f64, tail.chunks as f64);
        let pace_s = base_s / *base as f64;
        self.chunks += chunks;
        self.extra += tail.compute_s / pace_s - samples;
        // The last claim comes to nothing.
        self.claims += chunks + 1.0;
        self.claim_s += tail.claim_s;
        let chunk = samples / chunks;
        self.smallest = Some(self.smallest.map_or(chunk, |smallest| smallest.min(chunk)));
    }

    /// Samples that a chunk costs beside its own.
    pub fn overhead(&self) -> f64 {
        (self.extra / (self.chunks + PRIOR)).max(0.0)
    }

    /// Seconds of a claim.
    pub fn claim_s(&self) -> f64 {
        (self.claim_s + PRIOR * CLAIM_FIRST_S) / (self.claims + PRIOR)
    }

    /// The smallest chunk that may be tried on a worker with such a batch: half of what it knows, so that a cost that nobody knows
    /// yet is met step by step.
    pub fn trusted(&self, batch: u64) -> u64 {
        let known = self.smallest.map(|smallest| (smallest / 2.0) as u64);
        known.unwrap_or(batch / FIRST_PART).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 40 samples in .7 s, then 20 in four chunks in .2 s.
    fn parts() -> Parts {
        let tail = Took { samples: 20, chunks: 4, compute_s: 0.2, claim_s: 0.01 };
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
        let uneven = Parts { tail: Took { chunks: 3, ..parts().tail }, ..parts() };
        assert!((uneven.observation(&curve).unwrap().batch - 60.0).abs() < 1e-12, "chunks of 6 2/3");
        let nothing = Parts { base: 0, base_s: 0.0, tail: Took::default() };
        nothing.measure(&mut curve, None);
        assert_eq!((curve, nothing.observation(&CurveLearner::new())), (same, None));
    }

    /// By hand: 17.5 ms for a sample of the base, 20 ms for one of the tail: four chunks cost 400 / 17.5 - 20 samples more, beside
    /// four that are believed to cost none.
    #[test]
    fn what_chunks_cost_is_told_within_an_iteration_and_fades() {
        let mut cost = ChunkCost::default();
        let close =
            |value: f64, expected: f64| assert!((value - expected).abs() < 1e-12, "{value}, {expected}");
        assert_eq!((cost.overhead(), cost.claim_s(), cost.trusted(100)), (0.0, CLAIM_FIRST_S, 6));
        let slow = Took { compute_s: 0.4, ..parts().tail };
        cost.observe(&Parts { tail: slow, ..parts() });
        let overhead = (0.4 / 0.0175 - 20.0) / 8.0;
        close(cost.overhead(), overhead);
        close(cost.claim_s(), (0.01 + 4.0 * CLAIM_FIRST_S) / 9.0);
        assert_eq!(cost.trusted(100), 2);
        let whole = Parts { tail: Took::default(), ..parts() };
        (0..200).for_each(|_| cost.observe(&whole));
        assert!(cost.overhead() < overhead / 100.0, "it is tried again");
    }
}

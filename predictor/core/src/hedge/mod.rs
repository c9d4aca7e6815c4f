//! Hedged steps: a shared tail compensates for forecast errors.
//!
//! A step takes as long as its slowest worker. Even with the best forecast, steps take a fifth longer than
//! they would if each speed were known. Therefore each worker gets a base, which it can complete in time with
//! high certainty. The rest of the global batch is a tail of shrinking chunks, which workers claim when they
//! are free.
//!
//! No data moves. All workers know the order of the samples, and a claim is an addition on a shared counter
//! that identifies a range of samples.
//!
//! The worker's side is in the crate `evenstep-rules`: the sequence of chunks, the counter, and the decision when
//! to leave the remaining chunks to the others. Here:
//! - `bases`: samples that each worker can complete with high certainty
//! - [`learner`]: costs of chunks and claims
//! - [`play`](mod@play): discrete-event simulation of a hedged step
//! - [`hedge`]: decides whether a step is hedged, and how

mod bases;
pub mod learner;
pub mod play;

use bases::min_completed;
use evenstep_rules::{CHUNKS_PER_WORKER_MAX, Peer, chunks};
pub use learner::ChunkCost;
pub use play::{ClaimCost, PoolMember, TailWork, play};

use crate::allocate::{Scenarios, SplitWorker};

/// Default of the maximum number of workers that claim from one counter.
pub const POOL_MAX: usize = 64;

/// Approximate maximum number of events that one call simulates: a millisecond with few workers.
const EVENTS_MAX: usize = 10_000;

/// Approximate number of events per scenario and worker: claims in all drafts.
const EVENTS_PER_WORKER: usize = 40;

/// Candidate shapes. The first one is tried with every chunk size.
///
/// - Bases are a part of the samples that a worker completes in its worst scenario: future iterations can be
///   worse than all past ones, and a base that ends late delays all workers.
/// - Chunks are the remaining samples divided by `parts` times the number of workers. A factor of 2 is enough
///   if no worker is more than twice as slow as the others; otherwise it must be larger.
const SHAPES: [Shape; 3] =
    [Shape { base: 0.7, parts: 2 }, Shape { base: 0.8, parts: 2 }, Shape { base: 0.7, parts: 4 }];

/// Sizes of bases and chunks.
#[derive(Debug, Clone, Copy)]
struct Shape {
    base: f64,
    parts: usize,
}

/// Number of workers above which bases are smaller: in every step about n / 129 of n workers have a larger
/// error than in their last 128 iterations.
const FULL_BASE_WORKERS: f64 = 64.0;
/// Exponent with which bases decrease in the number of workers.
const BASE_EXPONENT: f64 = 0.2;

/// Options and costs of hedging.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// Cost of a claim.
    pub cost: ClaimCost,
    /// Minimum chunk in samples; at least 1, and a multiple of the quantum.
    pub min_chunk: u64,
    /// Bases and chunks are multiples of this. If the global batch is not a multiple, one base includes the
    /// remainder.
    pub quantum: u64,
    /// Maximum number of workers that claim from one counter; at least 2.
    pub pool_max: usize,
}

/// A hedged step: bases and a tail.
#[derive(Debug, Clone, PartialEq)]
pub struct Hedged {
    /// Base of each worker, by rank, in samples.
    pub bases: Vec<u64>,
    /// Pools of the tail, in the order of its samples. Bases and chunks add up to the global batch.
    pub pools: Vec<Pool>,
    /// Expected step time in seconds.
    pub step_time_s: f64,
}

/// Workers that claim from the same part of the tail.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pool {
    /// Ranks of the members, in ascending order.
    pub members: Vec<usize>,
    /// Expected progress of each member, in the same order.
    pub expected: Vec<Peer>,
    /// Samples of each chunk, in descending order.
    pub chunks: Vec<u64>,
}

/// Returns a hedged step if a tail is expected to shorten the step; `None` otherwise.
///
/// `batches` are the batches by rank as planned without a tail. `costs` are the chunk costs by rank; `None`
/// for workers that cannot claim.
pub fn hedge(
    batches: &[u64],
    shares: &[SplitWorker],
    costs: &[Option<ChunkCost>],
    scenarios: &Scenarios,
    terms: &Terms,
) -> Option<Hedged> {
    if scenarios.is_empty() || costs.iter().flatten().count() < 2 {
        return None;
    }
    let parts = min_completed(shares, batches, scenarios);
    let draft = Draft { batches, shares, costs, scenarios, terms, parts: &parts };
    let most = batches.iter().max().map_or(0, |batch| batch / 2);
    let known =
        batches.iter().zip(costs).filter_map(|(batch, cost)| Some(cost.as_ref()?.min_trial_chunk(*batch)));
    let smallest = known.fold(terms.min_chunk, u64::max).next_multiple_of(terms.quantum);
    let sizes = std::iter::successors(Some(smallest), |size| size.checked_mul(2));
    let by_size = sizes.take_while(|size| *size <= most).map(|size| (SHAPES[0], size));
    let (_, smallest) = draft.best(by_size)?;
    let (hedged, _) = draft.best(SHAPES.into_iter().map(|shape| (shape, smallest)))?;
    (hedged.step_time_s < draft.plain_s()).then_some(hedged)
}

struct Draft<'a> {
    batches: &'a [u64],
    shares: &'a [SplitWorker],
    costs: &'a [Option<ChunkCost>],
    scenarios: &'a Scenarios,
    terms: &'a Terms,
    /// Minimum samples of each worker over the scenarios (`min_completed`).
    parts: &'a [f64],
}

impl Draft<'_> {
    /// Returns the best of these drafts, with the size of its smallest chunk.
    fn best(&self, drafts: impl Iterator<Item = (Shape, u64)>) -> Option<(Hedged, u64)> {
        let hedged = drafts.filter_map(|(shape, size)| Some((self.hedged(shape, size)?, size)));
        hedged.min_by(|(a, _), (b, _)| a.step_time_s.total_cmp(&b.step_time_s))
    }

    /// Returns the hedged step with bases and chunks of this shape; `None` if such a tail does not exist.
    fn hedged(&self, shape: Shape, smallest: u64) -> Option<Hedged> {
        let mut claimants: Vec<usize> =
            (0..self.batches.len()).filter(|rank| self.costs[*rank].is_some()).collect();
        let mut bases = self.batches.to_vec();
        claimants.iter().for_each(|rank| bases[*rank] = self.base(*rank, shape.base));
        let mut tail = self.batches.iter().sum::<u64>() - bases.iter().sum::<u64>();
        // A worker whose cap the tail could exceed claims nothing. Then no order of claims can exceed a cap. Each
        // of them shortens the tail, so one pass is enough.
        claimants.retain(|&rank| {
            let is_capped = self.shares[rank].cap.is_some_and(|cap| bases[rank] + tail > cap);
            if is_capped {
                tail -= self.batches[rank] - bases[rank];
                bases[rank] = self.batches[rank];
            }
            !is_capped
        });
        if claimants.len() < 2 {
            return None;
        }
        let count = claimants.len().div_ceil(self.terms.pool_max);
        let pool = |at: usize| {
            let members = &claimants[at * claimants.len() / count..(at + 1) * claimants.len() / count];
            self.pool(members, &bases, shape.parts, smallest)
        };
        let pools: Vec<Pool> = (0..count).map(pool).collect();
        let chunks: usize = pools.iter().map(|pool| pool.chunks.len()).sum();
        if chunks == 0 || chunks > CHUNKS_PER_WORKER_MAX * claimants.len() {
            return None;
        }
        let mut hedged = Hedged { bases, pools, step_time_s: 0.0 };
        hedged.step_time_s = self.step_s(&hedged);
        Some(hedged)
    }

    /// Returns a worker's base: this part of its samples in the worst scenario, in whole quanta. It is at
    /// least its floor and at most its batch without a tail.
    fn base(&self, rank: usize, part: f64) -> u64 {
        let quantum = self.terms.quantum;
        // If the global batch is not a multiple of the quantum, one worker's batch includes the remainder.
        let odd = self.batches[rank] % quantum;
        let worker_count_factor =
            (FULL_BASE_WORKERS / self.batches.len() as f64).min(1.0).powf(BASE_EXPONENT);
        let certain_samples = (part * worker_count_factor * self.parts[rank]) as u64;
        let floor = self.shares[rank].floor.next_multiple_of(quantum);
        (certain_samples / quantum * quantum).max(floor).min(self.batches[rank] - odd) + odd
    }

    /// Returns these workers' part of the tail: their batches without a tail minus their bases.
    fn pool(&self, members: &[usize], bases: &[u64], parts: usize, smallest: u64) -> Pool {
        let expected: Vec<Peer> = members.iter().map(|rank| self.peer(*rank, bases[*rank])).collect();
        let tail = members.iter().map(|rank| self.batches[*rank] - bases[*rank]).sum();
        let chunks = chunks(tail, parts * members.len(), smallest, self.terms.quantum);
        Pool { members: members.to_vec(), expected, chunks }
    }

    /// Returns the expected progress of a worker with this base.
    fn peer(&self, rank: usize, base: u64) -> Peer {
        let batch = self.batches[rank].max(1);
        let curve = &self.shares[rank].curve;
        Peer { base_end_s: curve.time(base), speed: batch as f64 / curve.time(batch) }
    }

    /// Returns a subset of the scenarios that is small enough to simulate, the same for every draft: the number of each and its factors.
    fn rows(&self) -> impl Iterator<Item = (usize, &[f64])> {
        let events = self.scenarios.len() * self.batches.len() * EVENTS_PER_WORKER;
        let step = events.div_ceil(EVENTS_MAX).clamp(1, self.scenarios.len());
        self.scenarios.rows().enumerate().step_by(step)
    }

    /// Returns the mean step time over the scenarios, in seconds.
    fn step_s(&self, hedged: &Hedged) -> f64 {
        mean(self.rows().map(|(scenario, factors)| self.simulated_s(hedged, scenario, factors)))
    }

    /// Returns the mean step time over the same scenarios without a tail, in seconds.
    fn plain_s(&self) -> f64 {
        let step_s = |(scenario, factors): (usize, &[f64])| {
            self.busy_s(self.batches, scenario, factors).into_iter().fold(0.0, f64::max)
        };
        mean(self.rows().map(step_s))
    }

    /// Returns the time of each worker for its batch in a scenario, in seconds.
    fn busy_s(&self, batches: &[u64], scenario: usize, factors: &[f64]) -> Vec<f64> {
        let each = factors.iter().zip(self.shares).zip(batches);
        let mut busy_s: Vec<f64> =
            each.map(|((factor, share), batch)| factor * share.curve.time(*batch)).collect();
        for (rank, pause_s) in self.scenarios.pauses(scenario).filter(|(rank, _)| self.batches[*rank] > 0) {
            busy_s[rank] += pause_s;
        }
        busy_s
    }

    fn simulated_s(&self, hedged: &Hedged, scenario: usize, factors: &[f64]) -> f64 {
        let mut busy_s = self.busy_s(&hedged.bases, scenario, factors);
        for pool in &hedged.pools {
            let hand = |rank: &usize| PoolMember { base: hedged.bases[*rank], base_s: busy_s[*rank] };
            let hands: Vec<PoolMember> = pool.members.iter().map(hand).collect();
            let time_s = |member: usize, samples: u64| {
                let overhead = self.costs[pool.members[member]].map_or(0.0, |cost| cost.overhead());
                factors[pool.members[member]] * (samples as f64 + overhead) / pool.expected[member].speed
            };
            let took = play(&pool.chunks, &hands, &pool.expected, time_s, self.terms.cost);
            for (rank, took) in pool.members.iter().zip(took) {
                busy_s[*rank] += took.compute_s + took.claim_s;
            }
        }
        busy_s.into_iter().fold(0.0, f64::max)
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count)
}

#[cfg(test)]
mod tests;

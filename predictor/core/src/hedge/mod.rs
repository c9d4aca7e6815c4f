//! Hedged steps: what cannot be foreseen is shared.
//!
//! A step takes as long as its slowest worker, and the best forecast leaves steps a fifth longer than they would be if each
//! speed were known. So each worker gets a base that it will surely do in time, and the rest of the global batch is a tail
//! of shrinking chunks that whoever is free claims. Nothing moves: all know the order of the samples, and a claim is an
//! addition on a shared counter that names a range.
//!
//! - [`claim`]: the worker's side: the counter, and when to leave the rest to the others
//! - `bases`: what each will surely do
//! - `chunks`: the sequence in which the tail is claimed
//! - [`learner`]: what chunks and claims cost
//! - [`play`](mod@play): what comes of both, event by event
//! - [`hedge`]: whether, and how

mod bases;
mod chunks;
pub mod claim;
pub mod learner;
pub mod play;

use bases::least_parts;
pub use chunks::chunks;
pub use claim::{CLAIM, Counter, Judge, LEAVE, Peer};
pub use learner::ChunkCost;
pub use play::{ClaimCost, Hand, Took, play};

use crate::allocate::{Scenarios, Share};

/// The most chunks of a tail for each worker, on average.
pub const CHUNKS_PER_WORKER_MAX: usize = 16;

/// The most workers that claim from one counter, where nothing else is asked for.
pub const POOL_MAX: usize = 64;

/// Events that one call plays at most, about: a millisecond with few workers.
const EVENTS_MAX: usize = 10_000;

/// Events for one scenario and worker, about: claims in all drafts.
const EVENTS_PER_WORKER: usize = 40;

/// What is tried; the first with every size of chunks. Bases are parts of what a worker did in its worst scenario: what comes may
/// be worse than all that came, and a base that ends late is late for everybody. Chunks are what is left over so many times the
/// number of workers: twice where nobody is more than twice as slow as the others, more where somebody is.
const SHAPES: [Shape; 3] =
    [Shape { base: 0.7, parts: 2 }, Shape { base: 0.8, parts: 2 }, Shape { base: 0.7, parts: 4 }];

/// How large bases and chunks are.
#[derive(Debug, Clone, Copy)]
struct Shape {
    base: f64,
    parts: usize,
}

/// Beyond so many workers bases are smaller: of n workers n / 129 meet worse than their last 128 iterations in every step.
const FEW_WORKERS: f64 = 64.0;
/// By this power of their number.
const MANY_WORKERS: f64 = 0.2;

/// What hedging is bound to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// What a claim costs.
    pub cost: ClaimCost,
    /// No chunk is smaller; at least 1, a multiple of the quantum.
    pub min_chunk: u64,
    /// Bases and chunks are multiples of this (but one base, where the global batch is none).
    pub quantum: u64,
    /// The most workers that claim from one counter; at least 2.
    pub pool_max: usize,
}

/// Bases, and a tail.
#[derive(Debug, Clone, PartialEq)]
pub struct Hedged {
    /// Samples by rank that each worker does first.
    pub bases: Vec<u64>,
    /// The tail, in the order of its samples. Bases and chunks together are the global batch.
    pub pools: Vec<Pool>,
    /// Expected time of the step in seconds.
    pub step_time_s: f64,
}

/// Workers that claim from the same part of the tail.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pool {
    /// Their ranks, rising.
    pub members: Vec<usize>,
    /// What they expect of each other, in the same order.
    pub expected: Vec<Peer>,
    /// Samples of each chunk, falling.
    pub chunks: Vec<u64>,
}

/// Whether part of these batches (by rank, as planned without a tail) is better left to a tail, and which part. `costs` are
/// those of chunks, for workers that can claim. `None` where no tail is expected to shorten the step.
pub fn hedge(
    batches: &[u64],
    shares: &[Share],
    costs: &[Option<ChunkCost>],
    scenarios: &Scenarios,
    terms: &Terms,
) -> Option<Hedged> {
    if scenarios.is_empty() || costs.iter().flatten().count() < 2 {
        return None;
    }
    let parts = least_parts(shares, batches, scenarios);
    let draft = Draft { batches, shares, costs, scenarios, terms, parts: &parts };
    let most = batches.iter().max().map_or(0, |batch| batch / 2);
    let known = batches.iter().zip(costs).filter_map(|(batch, cost)| Some(cost.as_ref()?.trusted(*batch)));
    let smallest = known.fold(terms.min_chunk, u64::max).next_multiple_of(terms.quantum);
    let sizes = std::iter::successors(Some(smallest), |size| size.checked_mul(2));
    let by_size = sizes.take_while(|size| *size <= most).map(|size| (SHAPES[0], size));
    let (_, smallest) = draft.best(by_size)?;
    let (hedged, _) = draft.best(SHAPES.into_iter().map(|shape| (shape, smallest)))?;
    (hedged.step_time_s < draft.plain_s()).then_some(hedged)
}

struct Draft<'a> {
    batches: &'a [u64],
    shares: &'a [Share],
    costs: &'a [Option<ChunkCost>],
    scenarios: &'a Scenarios,
    terms: &'a Terms,
    /// What each does in its worst scenario.
    parts: &'a [f64],
}

impl Draft<'_> {
    /// The best of these, with the size of its smallest chunk.
    fn best(&self, drafts: impl Iterator<Item = (Shape, u64)>) -> Option<(Hedged, u64)> {
        let hedged = drafts.filter_map(|(shape, size)| Some((self.hedged(shape, size)?, size)));
        hedged.min_by(|(a, _), (b, _)| a.step_time_s.total_cmp(&b.step_time_s))
    }

    /// With bases and chunks of this shape, down to this size. `None` where there is no such tail.
    fn hedged(&self, shape: Shape, smallest: u64) -> Option<Hedged> {
        let mut claimants: Vec<usize> =
            (0..self.batches.len()).filter(|rank| self.costs[*rank].is_some()).collect();
        let mut bases = self.batches.to_vec();
        claimants.iter().for_each(|rank| bases[*rank] = self.base(*rank, shape.base));
        let tail = |bases: &[u64]| self.batches.iter().sum::<u64>() - bases.iter().sum::<u64>();
        // Who could claim more than it may have claims nothing: then no order of claims can break a cap.
        let capped = |rank: &usize, bases: &[u64]| {
            self.shares[*rank].cap.is_some_and(|cap| bases[*rank] + tail(bases) > cap)
        };
        while let Some(at) = claimants.iter().position(|rank| capped(rank, &bases)) {
            let rank = claimants.remove(at);
            bases[rank] = self.batches[rank];
        }
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

    /// A worker's base: whole quanta of this part of what it does in its worst scenario, at least its floor, and at most what it
    /// would be given without a tail.
    fn base(&self, rank: usize, part: f64) -> u64 {
        let quantum = self.terms.quantum;
        // Where the global batch is no multiple of the quantum, one worker has what is left over.
        let odd = self.batches[rank] % quantum;
        let rare = (FEW_WORKERS / self.batches.len() as f64).min(1.0).powf(MANY_WORKERS);
        let surely = (part * rare * self.parts[rank]) as u64;
        let floor = self.shares[rank].floor.next_multiple_of(quantum);
        (surely / quantum * quantum).max(floor).min(self.batches[rank] - odd) + odd
    }

    /// These workers' part of the tail: what they would be given without one, less their bases.
    fn pool(&self, members: &[usize], bases: &[u64], parts: usize, smallest: u64) -> Pool {
        let expected: Vec<Peer> = members.iter().map(|rank| self.peer(*rank, bases[*rank])).collect();
        let tail = members.iter().map(|rank| self.batches[*rank] - bases[*rank]).sum();
        let chunks = chunks(tail, parts * members.len(), smallest, self.terms.quantum);
        Pool { members: members.to_vec(), expected, chunks }
    }

    /// What others expect of a worker with such a base.
    fn peer(&self, rank: usize, base: u64) -> Peer {
        let batch = self.batches[rank].max(1);
        let curve = &self.shares[rank].curve;
        Peer { base_end_s: curve.time(base), speed: batch as f64 / curve.time(batch) }
    }

    /// The scenarios that there is time for, the same for every draft.
    fn rows(&self) -> impl Iterator<Item = &[f64]> {
        let events = self.scenarios.len() * self.batches.len() * EVENTS_PER_WORKER;
        self.scenarios.rows().step_by(events.div_ceil(EVENTS_MAX).clamp(1, self.scenarios.len()))
    }

    /// The mean over the scenarios of the time of the step.
    fn step_s(&self, hedged: &Hedged) -> f64 {
        mean(self.rows().map(|factors| self.played_s(hedged, factors)))
    }

    /// The mean over the same scenarios without a tail.
    fn plain_s(&self) -> f64 {
        let finish_s = |factors: &[f64], rank: usize| {
            let share = &self.shares[rank];
            share.communication.finish_s(factors[rank] * share.curve.time(self.batches[rank]))
        };
        let step_s =
            |factors: &[f64]| (0..factors.len()).map(|rank| finish_s(factors, rank)).fold(0.0, f64::max);
        mean(self.rows().map(step_s))
    }

    fn played_s(&self, hedged: &Hedged, factors: &[f64]) -> f64 {
        let compute_s = |rank: usize, samples: u64| factors[rank] * self.shares[rank].curve.time(samples);
        let mut busy_s: Vec<f64> =
            (0..factors.len()).map(|rank| compute_s(rank, hedged.bases[rank])).collect();
        for pool in &hedged.pools {
            let hand = |rank: &usize| Hand { base: hedged.bases[*rank], base_s: busy_s[*rank] };
            let hands: Vec<Hand> = pool.members.iter().map(hand).collect();
            let time_s = |member: usize, samples: u64| {
                let overhead = self.costs[pool.members[member]].map_or(0.0, |cost| cost.overhead());
                factors[pool.members[member]] * (samples as f64 + overhead) / pool.expected[member].speed
            };
            let took = play(&pool.chunks, &hands, &pool.expected, time_s, self.terms.cost);
            for (rank, took) in pool.members.iter().zip(took) {
                busy_s[*rank] += took.compute_s + took.claim_s;
            }
        }
        let ends = self.shares.iter().zip(busy_s);
        ends.map(|(share, busy_s)| share.communication.finish_s(busy_s)).fold(0.0, f64::max)
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count)
}

#[cfg(test)]
mod tests;

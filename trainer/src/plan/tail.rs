//! The tail of an iteration: samples that nobody was given, in chunks that whoever is free claims.

use evenstep_client::Share;
use evenstep_core::hedge::{CHUNKS_PER_WORKER_MAX, Peer};

/// What is claimed, and by whom.
#[derive(Debug, Clone, PartialEq)]
pub struct Tail {
    /// Where it begins within the iteration; it is the last part of it.
    pub(super) offset: u64,
    /// Samples of each chunk, in their order.
    pub(super) chunks: Vec<u64>,
    /// How many of the chunks each pool has, in their order.
    pub(super) pools: Vec<usize>,
    /// What each rank has to do with it.
    pub(super) claimants: Vec<Claimant>,
}

/// A rank at a tail.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Claimant {
    /// The pool that it claims from; none: it claims nothing.
    pub pool: Option<usize>,
    /// Its predicted speed in samples per second, where there is one.
    pub speed: Option<f64>,
}

/// The pool of chunks that a rank claims from.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool<'a> {
    /// Its number.
    pub number: usize,
    /// Where its first chunk begins within the iteration.
    pub offset: u64,
    /// Samples of each of its chunks, in their order.
    pub chunks: &'a [u64],
    /// How many ranks claim from it.
    pub members: usize,
    /// What is expected of the others; nobody where any member's speed is unknown, as then nobody can be judged by.
    pub peers: Vec<Peer>,
    /// The rank's own predicted speed in samples per second.
    pub speed: Option<f64>,
}

/// How a tail is made without forecasts: `--tail`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SharedTail {
    /// Its share of the global batch, above 0 and up to 1.
    pub share: f64,
    /// No chunk is smaller, where the tail is not; a multiple of the quantum.
    pub min_chunk: u64,
}

impl Tail {
    /// Samples of all chunks.
    pub fn samples(&self) -> u64 {
        self.chunks.iter().sum()
    }

    /// How many pools there are.
    pub fn pools(&self) -> usize {
        self.pools.len()
    }

    /// The ranks that claim from a pool.
    pub fn members(&self, pool: usize) -> impl Iterator<Item = (usize, &Claimant)> {
        self.claimants.iter().enumerate().filter(move |(_, claimant)| claimant.pool == Some(pool))
    }

    /// Its chunks, within the iteration.
    pub(super) fn shares(&self) -> impl Iterator<Item = Share> {
        self.chunks.iter().scan(self.offset, |offset, &local_batch| {
            let share = Share { local_batch, offset: *offset };
            *offset = offset.saturating_add(local_batch);
            Some(share)
        })
    }

    /// What each rank is expected to claim, by rank: exactly all samples, in proportion to weights.
    pub(super) fn parts(&self, shares: &[Share]) -> Vec<u64> {
        let claims = |weight: &dyn Fn(usize, &Claimant) -> f64| -> Vec<f64> {
            let all = self.claimants.iter().enumerate();
            all.map(|(rank, own)| if own.pool.is_some() { weight(rank, own) } else { 0.0 }).collect()
        };
        let mut weights = if self.claimants.iter().all(|own| own.pool.is_none() || own.speed.is_some()) {
            claims(&|_, own| own.speed.unwrap_or(0.0))
        } else {
            claims(&|rank, _| shares[rank].local_batch as f64)
        };
        if weights.iter().sum::<f64>() <= 0.0 {
            weights = claims(&|_, _| 1.0);
        }
        // Rounded as they add up, so that nothing is lost.
        let (samples, whole) = (self.samples(), weights.iter().sum::<f64>());
        let until = weights.iter().scan(0.0, |sum, weight| {
            *sum += weight;
            Some(((*sum / whole * samples as f64).round() as u64).min(samples))
        });
        let mut until: Vec<u64> = until.collect();
        if let Some(last) = weights.iter().rposition(|weight| *weight > 0.0) {
            until[last..].fill(samples);
        }
        let from = [0].into_iter().chain(until.iter().copied());
        until.iter().zip(from).map(|(until, from)| until - from).collect()
    }
}

/// The most chunks of a tail among so many workers.
pub fn chunks_max(world_size: usize) -> usize {
    CHUNKS_PER_WORKER_MAX * world_size
}

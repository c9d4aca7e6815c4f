//! The tail of an iteration: samples without a fixed worker, in chunks that free workers claim.

use crate::chunks::CHUNKS_PER_WORKER_MAX;
use crate::claim::Peer;
use crate::shares::Share;

/// The claimable chunks and the ranks that claim them.
#[derive(Debug, Clone, PartialEq)]
pub struct Tail {
    /// Offset of the first chunk within the iteration; the tail is the last part of the iteration.
    pub(crate) offset: u64,
    /// Samples of each chunk, in order.
    pub(crate) chunks: Vec<u64>,
    /// Number of chunks of each pool, in order.
    pub(crate) pools: Vec<usize>,
    /// Pool and speed of each rank.
    pub(crate) claimants: Vec<Claimant>,
}

/// A rank's pool and predicted speed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Claimant {
    /// The pool that the rank claims from; `None` if it claims nothing.
    pub pool: Option<usize>,
    /// Predicted speed of the rank in samples per second, if known.
    pub speed: Option<f64>,
}

/// The pool of chunks that a rank claims from.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool<'a> {
    /// Index of the pool.
    pub number: usize,
    /// Offset of the pool's first chunk within the iteration.
    pub offset: u64,
    /// Samples of each of the pool's chunks, in order.
    pub chunks: &'a [u64],
    /// Number of ranks that claim from the pool.
    pub members: usize,
    /// Forecasts of the other ranks; empty if any member's speed is unknown, because then no comparison is
    /// possible.
    pub peers: Vec<Peer>,
    /// Predicted speed of this rank in samples per second.
    pub speed: Option<f64>,
}

/// Settings of a tail without forecasts: `--tail`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SharedTail {
    /// Share of the global batch, above 0 and at most 1.
    pub share: f64,
    /// Minimum size of a chunk, unless the tail is smaller; rounded up to a multiple of the quantum.
    pub min_chunk: u64,
}

impl Tail {
    /// Creates a tail with these chunks, of which each pool has the next ones. `claimants` are in rank order.
    ///
    /// # Errors
    /// There is no chunk or more than [`chunks_max`], one is empty, the pools do not have all chunks, or a pool
    /// has no claimant. The message names the value and the rule.
    pub fn new(
        offset: u64,
        chunks: Vec<u64>,
        pools: Vec<usize>,
        claimants: Vec<Claimant>,
    ) -> Result<Self, String> {
        let (count, most) = (chunks.len(), chunks_max(claimants.len()));
        if count == 0 || count > most {
            return Err(format!("{count} chunks must be 1 to {most} for {} workers", claimants.len()));
        }
        if chunks.contains(&0) {
            return Err(format!("chunks of {chunks:?} must not be empty"));
        }
        let whole = pools.iter().try_fold(0_usize, |sum, pool| sum.checked_add(*pool));
        if whole != Some(count) || pools.contains(&0) {
            return Err(format!(
                "pools of {pools:?} chunks must not be empty and must have {count} chunks in total"
            ));
        }
        if let Some(pool) = claimants.iter().filter_map(|own| own.pool).find(|pool| *pool >= pools.len()) {
            return Err(format!(
                "pool {pool} of a worker must be below the number of pools, {}",
                pools.len()
            ));
        }
        let tail = Self { offset, chunks, pools, claimants };
        match (0..tail.pools.len()).find(|pool| tail.members(*pool).next().is_none()) {
            Some(pool) => Err(format!("pool {pool} has {} chunks but no worker", tail.pools[pool])),
            None => Ok(tail),
        }
    }

    /// Returns the offset of the first chunk within the iteration.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of samples of each chunk, in order.
    pub fn chunks(&self) -> &[u64] {
        &self.chunks
    }

    /// Returns the number of chunks of each pool, in order.
    pub fn chunks_by_pool(&self) -> &[usize] {
        &self.pools
    }

    /// Returns the pool and the speed of each rank.
    pub fn claimants(&self) -> &[Claimant] {
        &self.claimants
    }

    /// Returns the number of samples of all chunks.
    pub fn samples(&self) -> u64 {
        self.chunks.iter().sum()
    }

    /// Returns the number of pools.
    pub fn pools(&self) -> usize {
        self.pools.len()
    }

    /// Returns the ranks that claim from a pool.
    pub fn members(&self, pool: usize) -> impl Iterator<Item = (usize, &Claimant)> {
        self.claimants.iter().enumerate().filter(move |(_, claimant)| claimant.pool == Some(pool))
    }

    /// Returns the tail with these numbers of samples of its chunks, without the empty ones; `None` if all are empty.
    /// Ranks whose pool has no chunks claim nothing. Speeds are multiplied by the samples per unit.
    pub(crate) fn in_samples(&self, offset: u64, chunks: &[u64], samples_per_unit: f64) -> Option<Self> {
        let mut rest = chunks;
        let counts: Vec<usize> = (self.pools.iter())
            .map(|&count| {
                let (own, others) = rest.split_at(count);
                rest = others;
                own.iter().filter(|&&samples| samples > 0).count()
            })
            .collect();
        let number = |pool: usize| {
            (counts[pool] > 0).then(|| counts[..pool].iter().filter(|&&count| count > 0).count())
        };
        let claimant = |own: &Claimant| Claimant {
            pool: own.pool.and_then(number),
            speed: own.speed.map(|speed| speed * samples_per_unit),
        };
        let chunks: Vec<u64> = chunks.iter().copied().filter(|&samples| samples > 0).collect();
        (!chunks.is_empty()).then(|| Self {
            offset,
            chunks,
            pools: counts.iter().copied().filter(|&count| count > 0).collect(),
            claimants: self.claimants.iter().map(claimant).collect(),
        })
    }

    /// Returns the chunks as shares of the iteration.
    pub(crate) fn shares(&self) -> impl Iterator<Item = Share> {
        self.chunks.iter().scan(self.offset, |offset, &local_batch| {
            let share = Share { local_batch, offset: *offset };
            *offset = offset.saturating_add(local_batch);
            Some(share)
        })
    }

    /// Returns the samples that each rank is expected to claim, in proportion to the weights. The sum is
    /// exact.
    pub(crate) fn parts(&self, shares: &[Share]) -> Vec<u64> {
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
        // Cumulative rounding keeps the sum exact.
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

/// Returns the maximum number of chunks of a tail among `world_size` workers.
pub fn chunks_max(world_size: usize) -> usize {
    CHUNKS_PER_WORKER_MAX * world_size
}

//! The tail of an iteration: samples that nobody was given, in chunks that whoever is free claims.

use evenstep_core::hedge::{CHUNKS_PER_WORKER_MAX, Peer, chunks};

use super::{Plan, Share};

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

/// A rank's place at a tail: what its pool claims from.
#[derive(Debug, Clone, PartialEq)]
pub struct Seat<'a> {
    /// The pool.
    pub pool: usize,
    /// Where the pool's first chunk begins within the iteration.
    pub offset: u64,
    /// Samples of each of the pool's chunks, in their order.
    pub chunks: &'a [u64],
    /// How many ranks claim from the pool.
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

impl Plan {
    /// Even shares and an even chance: the last part of an iteration is left to whoever is free, in chunks that shrink.
    pub fn even_with_tail(global_batch: u64, world_size: usize, quantum: u64, shared: SharedTail) -> Self {
        let samples = (shared.share * global_batch as f64) as u64 / quantum * quantum;
        let plan = Self::even(global_batch - samples, world_size, quantum);
        if samples == 0 {
            return plan;
        }
        let most = chunks_max(world_size);
        let mut smallest = shared.min_chunk;
        let mut sizes = chunks(samples, 2 * world_size, smallest, quantum);
        while sizes.len() > most {
            smallest *= 2;
            sizes = chunks(samples, 2 * world_size, smallest, quantum);
        }
        let tail = Tail {
            offset: global_batch - samples,
            pools: vec![sizes.len()],
            chunks: sizes,
            claimants: vec![Claimant { pool: Some(0), speed: None }; world_size],
        };
        Self { tail: Some(tail), ..plan }
    }

    /// A rank's place at the tail; none where it claims nothing.
    pub fn seat(&self, rank: usize) -> Option<Seat<'_>> {
        let tail = self.tail.as_ref()?;
        let own = tail.claimants.get(rank)?;
        let pool = own.pool?;
        let before: usize = tail.pools[..pool].iter().sum();
        let (earlier, rest) = tail.chunks.split_at(before);
        let others = tail.members(pool).filter(|(other, _)| *other != rank);
        let peer = |(other, claimant): (usize, &Claimant)| {
            let speed = claimant.speed?;
            Some(Peer { base_end_s: self.shares[other].local_batch as f64 / speed, speed })
        };
        let peers: Option<Vec<Peer>> = own.speed.and_then(|_| others.map(peer).collect());
        Some(Seat {
            pool,
            offset: tail.offset + earlier.iter().sum::<u64>(),
            chunks: &rest[..tail.pools[pool]],
            members: tail.members(pool).count(),
            peers: peers.unwrap_or_default(),
            speed: own.speed,
        })
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with_tail(bases: &[u64], chunks: &[u64], claimants: &[(Option<usize>, Option<f64>)]) -> Plan {
        let plan = Plan::in_rank_order(bases, 1.0);
        let claimants = claimants.iter().map(|&(pool, speed)| Claimant { pool, speed }).collect();
        let pools = vec![chunks.len()];
        let tail = Tail { offset: plan.global_batch(), chunks: chunks.to_vec(), pools, claimants };
        Plan { tail: Some(tail), ..plan }
    }

    proptest! {
        #[test]
        fn even_shares_and_a_tail_cover_in_whole_quanta_with_a_bounded_number_of_chunks(
            global_batch in 0_u64..1 << 20, world_size in 1_usize..9, quantum in 1_u64..9, quanta in 1_u64..9,
            share in 0.001..1.0_f64,
        ) {
            let shared = SharedTail { share, min_chunk: quantum * quanta };
            let plan = Plan::even_with_tail(global_batch, world_size, quantum, shared);
            prop_assert!(plan.covers(global_batch));
            prop_assert_eq!(plan.expected_batches().iter().sum::<u64>(), global_batch);
            if let Some(tail) = plan.tail() {
                prop_assert!(tail.chunks.len() <= chunks_max(world_size));
                prop_assert!(tail.chunks.iter().all(|chunk| chunk % quantum == 0));
                prop_assert!(tail.chunks.len() == 1 || tail.chunks.iter().all(|chunk| *chunk >= quantum * quanta));
                prop_assert!((0..world_size).all(|rank| plan.seat(rank).unwrap().chunks == tail.chunks));
            }
            let smaller = (share * global_batch as f64) as u64;
            if smaller < global_batch {
                let resized = plan.resized(smaller);
                prop_assert!(resized.covers(smaller) && resized.tail().is_none());
            }
        }
    }

    #[test]
    fn what_each_is_expected_to_claim_goes_by_speed_and_else_by_shares() {
        let speeds = [(Some(0), Some(10.0)), (Some(0), Some(30.0)), (None, None)];
        assert_eq!(with_tail(&[10, 20, 5], &[20, 20], &speeds).expected_batches(), [20, 50, 5]);
        let unknown = [(Some(0), Some(10.0)), (Some(0), None), (None, Some(1.0))];
        assert_eq!(with_tail(&[10, 30, 5], &[20, 20], &unknown).expected_batches(), [20, 60, 5]);
        let no_bases = [(Some(0), None), (None, None), (Some(0), None)];
        assert_eq!(with_tail(&[0, 5, 0], &[7], &no_bases).expected_batches(), [4, 5, 3]);
    }

    #[test]
    fn who_sits_where_one_speed_is_unknown_judges_by_nobody() {
        let known =
            with_tail(&[10, 20, 5], &[9], &[(Some(0), Some(10.0)), (Some(0), Some(40.0)), (None, None)]);
        let seat = known.seat(0).unwrap();
        assert_eq!((seat.members, &seat.peers[..]), (2, &[Peer { base_end_s: 0.5, speed: 40.0 }][..]));
        assert_eq!(known.seat(2), None);
        let unknown = with_tail(&[10, 20], &[9], &[(Some(0), Some(10.0)), (Some(0), None)]);
        assert!((0..2).all(|rank| unknown.seat(rank).unwrap().peers.is_empty()));
    }
}

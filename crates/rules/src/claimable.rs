//! The claimable chunks of a rank, and even splits with a shared tail.

use crate::chunks::chunks;
use crate::claim::Peer;
use crate::split::Plan;
use crate::tail::{Claimant, Pool, SharedTail, Tail, chunks_max};

impl Plan {
    /// Returns even shares and a shared tail.
    pub fn even_with_tail(global_batch: u64, world_size: usize, quantum: u64, shared: SharedTail) -> Self {
        Self::even(global_batch, world_size, quantum).with_tail(shared, quantum)
    }

    /// Returns the plan with a shared tail of all ranks: the last part of the iteration, in chunks of decreasing
    /// size that any free worker claims. Shares shrink in proportion. A tail without samples is none.
    #[must_use]
    pub fn with_tail(self, shared: SharedTail, quantum: u64) -> Self {
        let (global_batch, world_size) = (self.global_batch(), self.shares.len());
        let samples = (shared.share * global_batch as f64) as u64 / quantum * quantum;
        if samples == 0 || self.tail.is_some() {
            return self;
        }
        let most = chunks_max(world_size);
        let mut smallest = shared.min_chunk.clamp(1, samples).next_multiple_of(quantum);
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
        let plan = self.resized(global_batch - samples, quantum);
        Self { tail: Some(tail), ..plan }
    }

    /// Returns the pool that a rank claims from, or `None` if it claims nothing.
    pub fn pool(&self, rank: usize) -> Option<Pool<'_>> {
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
        Some(Pool {
            number: pool,
            offset: tail.offset + earlier.iter().sum::<u64>(),
            chunks: &rest[..tail.pools[pool]],
            members: tail.members(pool).count(),
            peers: peers.unwrap_or_default(),
            speed: own.speed,
        })
    }
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
            global_batch in 0_u64..1 << 20, world_size in 1_usize..9, quantum in 1_u64..9, min_chunk in 0_u64..64,
            share in 0.001..1.0_f64,
        ) {
            let shared = SharedTail { share, min_chunk };
            let plan = Plan::even_with_tail(global_batch, world_size, quantum, shared);
            prop_assert!(plan.covers(global_batch));
            prop_assert_eq!(plan.expected_batches().iter().sum::<u64>(), global_batch);
            if let Some(tail) = plan.tail() {
                prop_assert!(tail.chunks.len() <= chunks_max(world_size));
                prop_assert!(tail.chunks.iter().all(|chunk| chunk % quantum == 0));
                prop_assert!(tail.chunks.len() == 1 || tail.chunks.iter().all(|chunk| *chunk >= min_chunk));
                prop_assert!((0..world_size).all(|rank| plan.pool(rank).unwrap().chunks == tail.chunks));
            }
            let smaller = (share * global_batch as f64) as u64;
            if smaller < global_batch {
                let resized = plan.resized(smaller, quantum);
                prop_assert!(resized.covers(smaller) && resized.tail().is_none());
            }
        }
    }

    #[test]
    fn expected_claims_follow_speeds_or_else_shares() {
        let speeds = [(Some(0), Some(10.0)), (Some(0), Some(30.0)), (None, None)];
        assert_eq!(with_tail(&[10, 20, 5], &[20, 20], &speeds).expected_batches(), [20, 50, 5]);
        let unknown = [(Some(0), Some(10.0)), (Some(0), None), (None, Some(1.0))];
        assert_eq!(with_tail(&[10, 30, 5], &[20, 20], &unknown).expected_batches(), [20, 60, 5]);
        let no_bases = [(Some(0), None), (None, None), (Some(0), None)];
        assert_eq!(with_tail(&[0, 5, 0], &[7], &no_bases).expected_batches(), [4, 5, 3]);
    }

    #[test]
    fn no_worker_is_judged_without_a_comparison_speed() {
        let known =
            with_tail(&[10, 20, 5], &[9], &[(Some(0), Some(10.0)), (Some(0), Some(40.0)), (None, None)]);
        let pool = known.pool(0).unwrap();
        assert_eq!((pool.members, &pool.peers[..]), (2, &[Peer { base_end_s: 0.5, speed: 40.0 }][..]));
        assert_eq!(known.pool(2), None);
        let unknown = with_tail(&[10, 20], &[9], &[(Some(0), Some(10.0)), (Some(0), None)]);
        assert!((0..2).all(|rank| unknown.pool(rank).unwrap().peers.is_empty()));
    }
}

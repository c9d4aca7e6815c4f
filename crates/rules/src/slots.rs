//! Encoding of a plan as numbers in fixed slots. Integers stay exact as 32-bit floats.

use crate::chunks::CHUNKS_PER_WORKER_MAX;
use crate::rate::{self, Rate};
use crate::shares::Share;
use crate::split::Plan;
use crate::tail::{Claimant, Tail};

/// Whether a plan is present, and the rate.
const HEAD: usize = 1 + rate::SLOTS;
/// Offset of the tail, number of chunks, number of pools.
const TAIL_HEAD: usize = 3;
/// Slots of one rank: batch and offset; pool, from 1, and speed; chunks of one pool; budget of background
/// work. The number of pools never exceeds the number of ranks.
const RANK_SLOTS: usize = 6;
const PER_RANK: usize = RANK_SLOTS + CHUNKS_PER_WORKER_MAX;

impl Plan {
    /// Returns the number of slots of an encoded plan.
    pub fn slots(world_size: usize) -> usize {
        HEAD + TAIL_HEAD + PER_RANK * world_size
    }

    /// Encodes the plan into its slots. An absent plan is all zeros.
    pub fn encode(plan: Option<&Self>, world_size: usize) -> Vec<f64> {
        let mut slots = vec![0.0; Self::slots(world_size)];
        let Some(plan) = plan else { return slots };
        let (head, rest) = slots.split_at_mut(HEAD);
        let (tail_head, rest) = rest.split_at_mut(TAIL_HEAD);
        let (of_ranks, chunks) = rest.split_at_mut(RANK_SLOTS * world_size);
        head[0] = 1.0;
        head[1..].copy_from_slice(&plan.rate.encode());
        for (own, share) in of_ranks.chunks_exact_mut(RANK_SLOTS).zip(&plan.shares) {
            own[..2].copy_from_slice(&[share.local_batch as f64, share.offset as f64]);
        }
        if let Some(tail) = &plan.tail {
            let counts = [tail.chunks.len() as f64, tail.pools.len() as f64];
            tail_head.copy_from_slice(&[tail.offset as f64, counts[0], counts[1]]);
            for (own, claimant) in of_ranks.chunks_exact_mut(RANK_SLOTS).zip(&tail.claimants) {
                own[2] = claimant.pool.map_or(0.0, |pool| pool as f64 + 1.0);
                own[3] = claimant.speed.unwrap_or(0.0);
            }
            for (own, pool) in of_ranks.chunks_exact_mut(RANK_SLOTS).zip(&tail.pools) {
                own[4] = *pool as f64;
            }
            for (slot, chunk) in chunks.iter_mut().zip(&tail.chunks) {
                *slot = *chunk as f64;
            }
        }
        for (own, budget_s) in of_ranks.chunks_exact_mut(RANK_SLOTS).zip(&plan.budgets_s) {
            own[5] = *budget_s;
        }
        slots
    }

    /// Decodes the slots of [`Plan::encode`].
    pub fn decode(slots: &[f64]) -> Option<Self> {
        if slots[0] != 1.0 {
            return None;
        }
        let (head, rest) = slots.split_at(HEAD);
        let (tail_head, rest) = rest.split_at(TAIL_HEAD);
        let (of_ranks, chunks) = rest.split_at(rest.len() / PER_RANK * RANK_SLOTS);
        let of_rank = || of_ranks.chunks_exact(RANK_SLOTS);
        let share = |own: &[f64]| Share { local_batch: own[0] as u64, offset: own[1] as u64 };
        let claimant = |own: &[f64]| Claimant {
            pool: (own[2] > 0.0).then(|| own[2] as usize - 1),
            speed: (own[3] > 0.0 && own[3].is_finite()).then_some(own[3]),
        };
        let [offset, count, pools] = tail_head.try_into().ok()?;
        let tail = (count > 0.0).then(|| Tail {
            offset: offset as u64,
            chunks: chunks.iter().take(count as usize).map(|chunk| *chunk as u64).collect(),
            pools: of_rank().take(pools as usize).map(|own| own[4] as usize).collect(),
            claimants: of_rank().map(claimant).collect(),
        });
        let rate = Rate::decode(head[1..].try_into().ok()?);
        // An empty list means that no rank has a budget.
        let mut budgets_s: Vec<f64> = of_rank().map(|own| own[5]).collect();
        budgets_s.truncate(if budgets_s.iter().any(|budget_s| *budget_s > 0.0) {
            budgets_s.len()
        } else {
            0
        });
        Some(Self { shares: of_rank().map(share).collect(), tail, rate, budgets_s })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::GLOBAL_BATCH_MAX;

    proptest! {
        #[test]
        fn a_plan_round_trips_through_its_slots_also_as_32_bit_floats(
            batches in prop::collection::vec(0_u64..(GLOBAL_BATCH_MAX / 16), 1..8),
            chunks in prop::collection::vec(1_u64..(GLOBAL_BATCH_MAX / 32), 0..17),
            seats in prop::collection::vec((any::<bool>(), 0.0_f32..1e6), 8), cut in 0_usize..17,
            budget_s in prop::option::of(0.001_f32..10.0),
        ) {
            let mut plan = Plan::in_rank_order(&batches, 0.5);
            if let Some(budget_s) = budget_s {
                plan.budgets_s = (0..batches.len()).map(|rank| f64::from(budget_s * (rank % 3) as f32)).collect();
                plan.budgets_s[0] = f64::from(budget_s);
            }
            if !chunks.is_empty() {
                let cut = cut % chunks.len();
                let pools = if cut == 0 || batches.len() == 1 { vec![chunks.len()] } else { vec![cut, chunks.len() - cut] };
                let claimant = |rank: usize, &(claims, speed): &(bool, f32)| Claimant {
                    pool: claims.then_some(rank % pools.len()),
                    speed: (speed > 0.5e6).then_some(f64::from(speed)),
                };
                let claimants = seats.iter().take(batches.len()).enumerate();
                let claimants = claimants.map(|(rank, seat)| claimant(rank, seat)).collect();
                plan.tail = Some(Tail { offset: plan.global_batch(), chunks, pools, claimants });
            }
            let slots = Plan::encode(Some(&plan), batches.len());
            prop_assert_eq!(slots.len(), Plan::slots(batches.len()));
            let narrow: Vec<f64> = slots.iter().map(|&slot| f64::from(slot as f32)).collect();
            prop_assert_eq!(Plan::decode(&narrow), Some(plan));
        }
    }

    #[test]
    fn no_plan_stays_none() {
        assert_eq!(Plan::decode(&Plan::encode(None, 3)), None);
    }
}

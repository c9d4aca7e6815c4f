//! The split of an iteration over the ranks: the plan in force.

use crate::apportion::apportion;
use crate::rate::Rate;
use crate::shares::{Share, covers};
use crate::tail::Tail;

/// The samples that each rank computes in one iteration, and the multiplier of the learning rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub(crate) shares: Vec<Share>,
    /// The claimed part, after all shares.
    pub(crate) tail: Option<Tail>,
    pub(crate) rate: Rate,
    /// Seconds by rank that background work may delay the rank; empty if the allocation has no budgets.
    pub(crate) budgets_s: Vec<f64>,
}

impl Plan {
    /// Returns an even split in whole quanta; the first ranks get one quantum more. The remainder below one
    /// quantum goes to the rank after the last larger one, so that no rank gets two extras.
    pub fn even(global_batch: u64, world_size: usize, quantum: u64) -> Self {
        Self::in_rank_order(&apportion(global_batch, &vec![1; world_size], quantum), 1.0)
    }

    /// Creates a plan of these shares in rank order. See [`Plan::covers`].
    pub fn new(shares: Vec<Share>, rate: Rate, tail: Option<Tail>) -> Self {
        Self { shares, tail, rate, budgets_s: Vec::new() }
    }

    /// Returns consecutive shares of these sizes.
    pub fn in_rank_order(batches: &[u64], rate: impl Into<Rate>) -> Self {
        let mut offset = 0;
        let shares = batches
            .iter()
            .map(|&local_batch| {
                let share = Share { local_batch, offset };
                offset += local_batch;
                share
            })
            .collect();
        Self { shares, tail: None, rate: rate.into(), budgets_s: Vec::new() }
    }

    /// Returns the first plan of a regrouped run. The members' previous shares are the weights; a member
    /// without a share gets the mean. The plan is an even split if no member had a share.
    pub fn regrouped(shares: &[Option<u64>], global_batch: u64, quantum: u64, rate: Rate) -> Self {
        let known: Vec<u64> = shares.iter().copied().flatten().collect();
        let sum: u64 = known.iter().sum();
        if sum == 0 {
            return Self { rate, ..Self::even(global_batch, shares.len(), quantum) };
        }
        let mean = sum.div_ceil(known.len() as u64);
        let weights: Vec<u64> = shares.iter().map(|share| share.unwrap_or(mean)).collect();
        let batches = apportion(global_batch, &weights, quantum);
        Self::in_rank_order(&batches, rate)
    }

    /// Returns the plan for another number of samples, without a tail: see [`Plan::without_tail`]. This plan is in
    /// force at the partial iteration that ends an epoch if the predictor is unreachable.
    pub fn resized(&self, global_batch: u64, quantum: u64) -> Self {
        if self.global_batch() == global_batch {
            return self.clone();
        }
        self.without_tail(global_batch, quantum)
    }

    /// Returns the same proportions over this number of samples in whole quanta, without a tail. See
    /// [`apportion`].
    pub fn without_tail(&self, global_batch: u64, quantum: u64) -> Self {
        Self::in_rank_order(&apportion(global_batch, &self.expected_batches(), quantum), self.rate)
    }

    /// Returns this plan, whose shares are in units of cost, in samples: with these numbers of samples of the shares,
    /// then of the chunks. Chunks without samples are left out. Speeds are multiplied by the samples per unit.
    ///
    /// # Errors
    /// There is not one number for each share and each chunk.
    pub fn in_samples(&self, sizes: &[u64], samples_per_unit: f64) -> Result<Self, String> {
        let (ranks, count) = (self.shares.len(), self.tail.as_ref().map_or(0, |tail| tail.chunks.len()));
        if sizes.len() != ranks + count {
            return Err(format!(
                "{} numbers of samples: must be {}, one for each rank and each chunk",
                sizes.len(),
                ranks + count
            ));
        }
        let (shares, chunks) = sizes.split_at(ranks);
        let counted = Self::in_rank_order(shares, self.rate);
        let tail = self
            .tail
            .as_ref()
            .and_then(|tail| tail.in_samples(counted.global_batch(), chunks, samples_per_unit));
        Ok(Self { tail, ..counted })
    }

    /// Returns the expected number of samples by rank: the rank's share plus its part of the tail. The parts
    /// are in proportion to the speeds of the claiming ranks or, if a speed is unknown, to their shares. The
    /// sum is the global batch.
    pub fn expected_batches(&self) -> Vec<u64> {
        let given = self.shares.iter().map(|share| share.local_batch);
        match &self.tail {
            Some(tail) => given.zip(tail.parts(&self.shares)).map(|(given, part)| given + part).collect(),
            None => given.collect(),
        }
    }

    /// Returns the share of a rank. With a tail, this is the part before the first claim.
    pub fn share(&self, rank: usize) -> Share {
        self.shares[rank]
    }

    /// Returns all shares in rank order.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// Returns the tail, if the plan has one.
    pub fn tail(&self) -> Option<&Tail> {
        self.tail.as_ref()
    }

    /// Returns the time that background work may delay a rank in this iteration, in seconds; 0 if no budget
    /// is set.
    pub fn budget_s(&self, rank: usize) -> f64 {
        self.budgets_s.get(rank).copied().unwrap_or(0.0)
    }

    /// Returns the multiplier of the learning rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the same shares with another rate.
    #[must_use]
    pub fn at_rate(self, rate: Rate) -> Self {
        Self { rate, ..self }
    }

    /// Returns the number of samples over all ranks and in the tail.
    pub fn global_batch(&self) -> u64 {
        let given: u64 = self.shares.iter().map(|share| share.local_batch).sum();
        given + self.tail.as_ref().map_or(0, Tail::samples)
    }

    /// Returns whether the plan covers each sample of an iteration exactly once, the tail's samples last.
    pub fn covers(&self, global_batch: u64) -> bool {
        covers(&self.shares, self.tail.iter().flat_map(Tail::shares), global_batch)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two pools; the first one keeps one chunk, the second one none.
    #[test]
    fn a_plan_of_costs_is_put_in_samples() {
        let claimant = |pool, speed| crate::tail::Claimant { pool, speed };
        let claimants =
            vec![claimant(Some(0), Some(100.0)), claimant(Some(1), None), claimant(Some(0), None)];
        let tail = Tail::new(900, vec![50, 40, 10], vec![2, 1], claimants).unwrap();
        let whole = Plan { tail: Some(tail), ..Plan::in_rank_order(&[500, 300, 100], 1.0) };
        let plan = whole.in_samples(&[5, 0, 2, 1, 0, 0], 0.1).unwrap();
        assert!(plan.covers(8), "{plan:?}");
        let tail = plan.tail().unwrap();
        assert_eq!(
            (tail.offset(), tail.chunks(), tail.chunks_by_pool()),
            (7, [1].as_slice(), [1].as_slice())
        );
        let pools: Vec<_> = tail.claimants().iter().map(|own| own.pool).collect();
        assert_eq!((pools, tail.claimants()[0].speed), (vec![Some(0), None, Some(0)], Some(10.0)));
        let later = whole.in_samples(&[5, 0, 2, 0, 0, 4], 0.1).unwrap();
        let tail = later.tail().unwrap();
        let pools: Vec<_> = tail.claimants().iter().map(|own| own.pool).collect();
        assert_eq!((tail.chunks(), pools), ([4].as_slice(), vec![None, Some(0), None]));
        assert_eq!(whole.in_samples(&[5, 1, 2, 0, 0, 0], 0.1).unwrap().tail(), None);
        assert!(whole.in_samples(&[5, 1, 2], 0.1).unwrap_err().contains("must be 6"));
    }

    proptest! {
        #[test]
        fn an_even_split_covers_and_differs_by_less_than_one_quantum(
            global_batch in 0_u64..5000, world_size in 1_usize..9, quantum in 1_u64..33,
        ) {
            let plan = Plan::even(global_batch, world_size, quantum);
            prop_assert!(plan.covers(global_batch));
            let batches: Vec<u64> = plan.shares().iter().map(|share| share.local_batch).collect();
            let spread = batches.iter().max().unwrap() - batches.iter().min().unwrap();
            prop_assert!(spread <= quantum, "{batches:?}");
            let odd = batches.iter().filter(|&&batch| batch % quantum != 0).count();
            prop_assert!(odd <= 1, "{batches:?}");
        }

        #[test]
        fn a_resized_plan_covers_keeps_proportions_and_never_grows_when_it_shrinks(
            batches in proptest::collection::vec(0_u64..500, 1..9), share in 0.0..1.0_f64,
        ) {
            let plan = Plan::in_rank_order(&batches, 1.0);
            let whole = plan.global_batch();
            prop_assume!(whole > 0);
            let size = (share * whole as f64) as u64;
            let resized = plan.resized(size, 1);
            prop_assert!(resized.covers(size));
            for (before, after) in batches.iter().zip(resized.shares()) {
                let exact = *before as f64 * size as f64 / whole as f64;
                prop_assert!((after.local_batch as f64 - exact).abs() < 1.0);
                prop_assert!(after.local_batch <= *before);
            }
        }
    }

    #[test]
    fn a_regrouped_run_starts_with_the_previous_shares_of_its_members() {
        let batches = |shares: &[Option<u64>], quantum| -> Vec<u64> {
            let plan = Plan::regrouped(shares, 96, quantum, 0.5.into());
            assert_eq!((plan.global_batch(), plan.rate()), (96, Rate::from(0.5)));
            plan.shares().iter().map(|share| share.local_batch).collect()
        };
        assert_eq!(batches(&[Some(20), Some(40)], 1), [32, 64]);
        assert_eq!(batches(&[Some(20), Some(40), None], 1), [21, 43, 32]);
        assert_eq!(batches(&[Some(20), Some(40), None], 16), [16, 48, 32]);
        assert_eq!(batches(&[None, Some(0)], 32), [64, 32]);
    }
}

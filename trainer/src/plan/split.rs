//! The split of an iteration over the ranks: the plan in force.

use evenstep_client::Share;

use super::learning_rate::Rate;
use super::tail::Tail;

/// The samples that each rank computes in one iteration, and the multiplier of the learning rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub(super) shares: Vec<Share>,
    /// The claimed part, after all shares.
    pub(super) tail: Option<Tail>,
    pub(super) rate: Rate,
    /// Seconds by rank that background work may delay the rank; empty if the allocation has no budgets.
    pub(super) budgets_s: Vec<f64>,
}

impl Plan {
    /// Returns an even split in whole quanta; the first ranks get one quantum more. The remainder below one
    /// quantum goes to the rank after the last larger one, so that no rank gets two extras.
    pub fn even(global_batch: u64, world_size: usize, quantum: u64) -> Self {
        let ranks = world_size as u64;
        let quanta = global_batch / quantum;
        let mut batches: Vec<u64> =
            (0..ranks).map(|rank| (quanta / ranks + u64::from(rank < quanta % ranks)) * quantum).collect();
        batches[(quanta % ranks) as usize] += global_batch % quantum;
        Self::in_rank_order(&batches, 1.0)
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
    /// without a share gets the mean. The plan is an even split if a share exceeds the cap or no member had a
    /// share.
    pub fn regrouped(
        shares: &[Option<u64>],
        global_batch: u64,
        quantum: u64,
        cap: Option<u64>,
        rate: Rate,
    ) -> Self {
        let even = Self { rate, ..Self::even(global_batch, shares.len(), quantum) };
        let known: Vec<u64> = shares.iter().copied().flatten().collect();
        let sum: u64 = known.iter().sum();
        if sum == 0 {
            return even;
        }
        let mean = sum.div_ceil(known.len() as u64);
        let weights: Vec<u64> = shares.iter().map(|share| share.unwrap_or(mean)).collect();
        let quanta = Self::in_rank_order(&weights, rate).resized(global_batch / quantum);
        let batches: Vec<u64> = quanta.shares.iter().map(|share| share.local_batch * quantum).collect();
        if cap.is_some_and(|cap| batches.iter().any(|&batch| batch > cap)) {
            return even;
        }
        Self::in_rank_order(&batches, rate)
    }

    /// Returns the same proportions over another number of samples, without a tail. This plan is in force at
    /// the partial iteration that ends an epoch if the predictor is unreachable. Rounds by largest remainder;
    /// ties go to the lower rank.
    pub fn resized(&self, global_batch: u64) -> Self {
        let current = self.global_batch();
        if current == global_batch {
            return self.clone();
        }
        let expected = self.expected_batches();
        let scaled = |batch: u64| u128::from(batch) * u128::from(global_batch);
        let whole = u128::from(current.max(1));
        let mut batches: Vec<u64> = expected.iter().map(|&batch| (scaled(batch) / whole) as u64).collect();
        let mut order: Vec<usize> = (0..batches.len()).collect();
        order.sort_by_key(|&rank| (std::cmp::Reverse(scaled(expected[rank]) % whole), rank));
        let left = global_batch - batches.iter().sum::<u64>();
        for &rank in order.iter().cycle().take(left as usize) {
            batches[rank] += 1;
        }
        Self::in_rank_order(&batches, self.rate)
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
    pub(super) fn covers(&self, global_batch: u64) -> bool {
        let mut ordered: Vec<Share> =
            self.shares.iter().copied().filter(|share| share.local_batch > 0).collect();
        ordered.sort_by_key(|share| share.offset);
        ordered.extend(self.tail.iter().flat_map(Tail::shares));
        let end = ordered.iter().try_fold(0_u64, |end, share| {
            (share.offset == end).then(|| end.checked_add(share.local_batch)).flatten()
        });
        end == Some(global_batch)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            let resized = plan.resized(size);
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
        let batches = |shares: &[Option<u64>], quantum, cap| -> Vec<u64> {
            let plan = Plan::regrouped(shares, 96, quantum, cap, 0.5.into());
            assert_eq!((plan.global_batch(), plan.rate()), (96, Rate::from(0.5)));
            plan.shares().iter().map(|share| share.local_batch).collect()
        };
        assert_eq!(batches(&[Some(20), Some(40)], 1, None), [32, 64]);
        assert_eq!(batches(&[Some(20), Some(40), None], 1, None), [21, 43, 32]);
        assert_eq!(batches(&[Some(20), Some(40), None], 16, None), [16, 48, 32]);
        assert_eq!(batches(&[Some(20), Some(40)], 1, Some(60)), [48, 48]);
        assert_eq!(batches(&[None, Some(0)], 32, None), [64, 32]);
    }
}

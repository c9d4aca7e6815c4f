//! Who computes which samples of an iteration: the plan in force, the same on all ranks.

use evenstep_protocol::{AllocateAnswer, WorkerId};

use crate::rate::{self, Rate};

/// The largest global batch: whole numbers up to here travel exactly among 32-bit gradients.
pub const GLOBAL_BATCH_MAX: u64 = 1 << 24;

/// Slots of an encoded plan before those of the shares.
const HEAD_SLOTS: usize = 1 + rate::SLOTS;

/// What each rank computes in one iteration, and how the learning rate is scaled.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    shares: Vec<Share>,
    rate: Rate,
}

/// The samples of one rank: `offset .. offset + local_batch` of the iteration's global batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// How many.
    pub local_batch: u64,
    /// Where they begin.
    pub offset: u64,
}

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Our workers in rank order.
    pub workers: &'a [WorkerId],
    /// Samples in the iteration.
    pub global_batch: u64,
    /// The generation.
    pub generation: u64,
    /// Whether the global batch follows the number of workers.
    pub follows_workers: bool,
}

/// An answer of the predictor that this run cannot follow.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// It is about other workers than ours.
    #[error("the answer names {named} workers and {foreign:?} is not one of our {ours}")]
    Workers {
        /// How many it names.
        named: usize,
        /// One that we do not know, or that comes twice; empty where some of ours are left out.
        foreign: String,
        /// How many we are.
        ours: usize,
    },
    /// Its shares do not cover the global batch exactly once.
    #[error(
        "the answer's shares do not cover the {expected} samples of the iteration exactly once: {shares:?}"
    )]
    Cover {
        /// Samples to be covered.
        expected: u64,
        /// The shares in our rank order.
        shares: Vec<Share>,
    },
    /// It was given before others joined, for a global batch that followed the number of workers.
    #[error("the answer is for a global batch of fewer workers, given before others joined")]
    Outgrown,
    /// Its multiplier is no learning-rate multiplier.
    #[error("the answer's learning-rate multiplier {0} must be finite and at least 0")]
    LearningRate(f64),
}

impl Plan {
    /// An even split: whole quanta as even as they go, the first ranks one more; what is left under a quantum goes to
    /// the rank after the last larger one, so that nobody gets two extras.
    pub fn even(global_batch: u64, world_size: usize, quantum: u64) -> Self {
        let ranks = world_size as u64;
        let quanta = global_batch / quantum;
        let mut batches: Vec<u64> =
            (0..ranks).map(|rank| (quanta / ranks + u64::from(rank < quanta % ranks)) * quantum).collect();
        batches[(quanta % ranks) as usize] += global_batch % quantum;
        Self::in_rank_order(&batches, 1.0)
    }

    /// Consecutive shares of these sizes.
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
        Self { shares, rate: rate.into() }
    }

    /// Checks an answer and puts it in our rank order. An answer that was given in an earlier generation than it was asked
    /// for in may leave out a worker that joined since, which then computes nothing in that iteration; but not where the
    /// global batch follows the number of workers, as it and its learning rate are then for another one.
    ///
    /// # Errors
    /// It names other workers than ours, or its shares do not cover the global batch exactly once.
    pub fn from_answer(answer: &AllocateAnswer, asked: &Asked<'_>) -> Result<Self, PlanError> {
        let Asked { workers, global_batch, generation, follows_workers } = *asked;
        let named = answer.allocations.len();
        let mut shares = vec![None; workers.len()];
        for allocation in &answer.allocations {
            let free = workers.iter().position(|worker| *worker == allocation.worker);
            match free.map(|rank| &mut shares[rank]) {
                Some(slot @ None) => {
                    *slot = Some(Share { local_batch: allocation.local_batch, offset: allocation.offset });
                }
                _ => {
                    let foreign = allocation.worker.to_string();
                    return Err(PlanError::Workers { named, foreign, ours: workers.len() });
                }
            }
        }
        if answer.generation < generation {
            if follows_workers && shares.iter().any(Option::is_none) {
                return Err(PlanError::Outgrown);
            }
            for left_out in shares.iter_mut().filter(|share| share.is_none()) {
                *left_out = Some(Share::default());
            }
        }
        let shares: Option<Vec<Share>> = shares.into_iter().collect();
        let shares =
            shares.ok_or(PlanError::Workers { named, foreign: String::new(), ours: workers.len() })?;
        let rate = Rate::from_instruction(&answer.optimizer).map_err(PlanError::LearningRate)?;
        let plan = Self { shares, rate };
        if plan.covers(global_batch) {
            return Ok(plan);
        }
        Err(PlanError::Cover { expected: global_batch, shares: plan.shares })
    }

    /// What a regrouped run begins with: the shares that the members had, as weights, and for those who had none the mean
    /// of them; an even split where that breaks the cap or nobody had any.
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

    fn covers(&self, global_batch: u64) -> bool {
        let mut ordered: Vec<Share> =
            self.shares.iter().copied().filter(|share| share.local_batch > 0).collect();
        ordered.sort_by_key(|share| share.offset);
        let end = ordered.iter().try_fold(0_u64, |end, share| {
            (share.offset == end).then(|| end.checked_add(share.local_batch)).flatten()
        });
        end == Some(global_batch)
    }

    /// The same proportions over another number of samples: what stays in force at the ragged end of an epoch when
    /// the predictor is silent. Largest remainder; ties go to the lower rank.
    pub fn resized(&self, global_batch: u64) -> Self {
        let current = self.global_batch();
        if current == global_batch {
            return self.clone();
        }
        let scaled = |share: &Share| u128::from(share.local_batch) * u128::from(global_batch);
        let whole = u128::from(current.max(1));
        let mut batches: Vec<u64> = self.shares.iter().map(|share| (scaled(share) / whole) as u64).collect();
        let mut order: Vec<usize> = (0..batches.len()).collect();
        order.sort_by_key(|&rank| (std::cmp::Reverse(scaled(&self.shares[rank]) % whole), rank));
        let left = global_batch - batches.iter().sum::<u64>();
        for &rank in order.iter().cycle().take(left as usize) {
            batches[rank] += 1;
        }
        Self::in_rank_order(&batches, self.rate)
    }

    /// The share of a rank.
    pub fn share(&self, rank: usize) -> Share {
        self.shares[rank]
    }

    /// All shares, in rank order.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// What the learning rate is multiplied by.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// The same shares at another rate.
    #[must_use]
    pub fn at_rate(self, rate: Rate) -> Self {
        Self { rate, ..self }
    }

    /// Samples over all ranks.
    pub fn global_batch(&self) -> u64 {
        self.shares.iter().map(|share| share.local_batch).sum()
    }

    /// Slots that a plan takes on its way to the other ranks.
    pub fn slots(world_size: usize) -> usize {
        HEAD_SLOTS + 2 * world_size
    }

    /// Writes the plan into its slots; "no news" is all zeros.
    pub fn encode(news: Option<&Self>, world_size: usize) -> Vec<f64> {
        let mut slots = vec![0.0; Self::slots(world_size)];
        if let Some(plan) = news {
            slots[0] = 1.0;
            slots[1..HEAD_SLOTS].copy_from_slice(&plan.rate.encode());
            for (pair, share) in slots[HEAD_SLOTS..].chunks_exact_mut(2).zip(&plan.shares) {
                pair[0] = share.local_batch as f64;
                pair[1] = share.offset as f64;
            }
        }
        slots
    }

    /// Reads what [`Plan::encode`] wrote.
    pub fn decode(slots: &[f64]) -> Option<Self> {
        if slots[0] != 1.0 {
            return None;
        }
        let shares = slots[HEAD_SLOTS..]
            .chunks_exact(2)
            .map(|pair| Share { local_batch: pair[0] as u64, offset: pair[1] as u64 })
            .collect();
        let rate = slots[1..HEAD_SLOTS].try_into().ok()?;
        Some(Self { shares, rate: Rate::decode(rate) })
    }
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::{
        Allocation, Decision, DecisionKind, JobId, LearningRateRule, OptimizerInstruction,
    };
    use proptest::prelude::*;

    use super::*;

    fn workers(count: usize) -> Vec<WorkerId> {
        (0..count).map(|slot| WorkerId::new(format!("node/{slot}")).unwrap()).collect()
    }

    /// An answer that hands out these (batch, offset) pairs to `node/<slot>`, in the order given.
    fn answer(shares: &[(usize, u64, u64)]) -> AllocateAnswer {
        let global_batch = shares.iter().map(|share| share.1).sum();
        let allocations = shares
            .iter()
            .enumerate()
            .map(|(rank, &(slot, local_batch, offset))| Allocation {
                worker: WorkerId::new(format!("node/{slot}")).unwrap(),
                rank: rank as u64,
                local_batch,
                offset,
                gradient_weight: local_batch as f64 / global_batch as f64,
                planned_batch: None,
                pool: None,
                predicted_compute_time_s: None,
                predicted_speed_samples_per_s: None,
                speed_lower_samples_per_s: None,
                speed_upper_samples_per_s: None,
                micro_batch: None,
                cost: None,
            })
            .collect();
        AllocateAnswer {
            job_id: JobId::new("job").unwrap(),
            generation: 1,
            iteration: 0,
            global_batch,
            allocations,
            tail: None,
            optimizer: OptimizerInstruction {
                rule: LearningRateRule::None,
                lr_multiplier: 0.5,
                momentum_buffer_scale: 1.0,
                ramp: None,
                schedule_iteration: None,
            },
            decision: Decision {
                kind: DecisionKind::Held,
                reason: String::new(),
                predicted_step_time_s: None,
                even_step_time_s: None,
            },
        }
    }

    /// What two workers make of an answer to a request for 40 samples.
    fn followed(answer: &AllocateAnswer, generation: u64, follows_workers: bool) -> Result<Plan, PlanError> {
        let asked = Asked { workers: &workers(2), global_batch: 40, generation, follows_workers };
        Plan::from_answer(answer, &asked)
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
            let resized = plan.resized(size);
            prop_assert!(resized.covers(size));
            for (before, after) in batches.iter().zip(resized.shares()) {
                let exact = *before as f64 * size as f64 / whole as f64;
                prop_assert!((after.local_batch as f64 - exact).abs() < 1.0);
                prop_assert!(after.local_batch <= *before);
            }
        }

        #[test]
        fn a_plan_survives_its_slots_also_as_32_bit_floats(
            batches in proptest::collection::vec(0_u64..(GLOBAL_BATCH_MAX / 8), 1..8),
        ) {
            let plan = Plan::in_rank_order(&batches, 0.5);
            let slots = Plan::encode(Some(&plan), batches.len());
            let narrow: Vec<f64> = slots.iter().map(|&slot| f64::from(slot as f32)).collect();
            prop_assert_eq!(Plan::decode(&narrow), Some(plan));
        }
    }

    #[test]
    fn a_regrouped_run_begins_with_the_shares_that_its_members_had() {
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

    #[test]
    fn no_news_is_no_plan() {
        assert_eq!(Plan::decode(&Plan::encode(None, 3)), None);
    }

    #[test]
    fn an_answer_is_put_in_our_rank_order() {
        let plan = followed(&answer(&[(1, 30, 0), (0, 10, 30)]), 1, false).unwrap();
        assert_eq!(
            plan.shares(),
            [Share { local_batch: 10, offset: 30 }, Share { local_batch: 30, offset: 0 }]
        );
        assert_eq!(plan.rate(), Rate::from(0.5));
    }

    #[test]
    fn answers_that_cannot_be_followed_are_refused() {
        let foreign = followed(&answer(&[(0, 10, 0), (7, 30, 10)]), 1, false);
        assert!(matches!(foreign, Err(PlanError::Workers { foreign, .. }) if foreign == "node/7"));
        let twice = followed(&answer(&[(0, 10, 0), (0, 30, 10)]), 1, false);
        assert!(matches!(twice, Err(PlanError::Workers { .. })));
        let left_out = followed(&answer(&[(0, 40, 0)]), 1, false);
        assert!(matches!(left_out, Err(PlanError::Workers { .. })));
        let joined_since = followed(&answer(&[(0, 40, 0)]), 2, false).unwrap();
        assert_eq!(joined_since.shares(), [Share { local_batch: 40, offset: 0 }, Share::default()]);
        let outgrown = followed(&answer(&[(0, 40, 0)]), 2, true);
        assert_eq!(outgrown, Err(PlanError::Outgrown), "of one worker's global batch");
        assert!(followed(&answer(&[(0, 10, 0), (1, 30, 10)]), 2, true).is_ok());
        for shares in [[(0, 10, 0), (1, 29, 10)], [(0, 10, 0), (1, 30, 9)], [(0, 10, 0), (1, 30, 11)]] {
            let wrong = followed(&answer(&shares), 1, false);
            assert!(matches!(wrong, Err(PlanError::Cover { .. })), "{shares:?}");
        }
    }
}

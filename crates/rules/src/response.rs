//! Plans from the predictor's responses.

use evenstep_protocol::{AllocateResponse, Allocation};

use crate::rate::Rate;
use crate::shares::{InvalidSize, Mismatch, Requested, Share};
use crate::split::Plan;
use crate::tail::{Claimant, Tail};

/// A response of the predictor that this run cannot follow.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The response is for other workers than this run's.
    #[error(transparent)]
    Workers(#[from] Mismatch),
    /// The shares do not cover the global batch exactly once.
    #[error(
        "the allocation does not cover the {expected} samples of the iteration exactly once: {shares:?}{}",
        .tail.as_ref().map_or_else(String::new, |(offset, chunks)| format!(", then from sample {offset} on chunks of {chunks:?}"))
    )]
    Cover {
        /// Number of samples to be covered.
        expected: u64,
        /// The shares in this run's rank order.
        shares: Vec<Share>,
        /// Offset of a tail, which must follow the shares, and its chunks.
        tail: Option<(u64, Vec<u64>)>,
    },
    /// A local batch breaks the quantum or a cap of this run.
    #[error(transparent)]
    Size(#[from] InvalidSize),
    /// The tail cannot be claimed.
    #[error("the tail of the allocation is invalid: {0}")]
    Tail(String),
    /// The learning-rate multiplier is negative or not finite.
    #[error("the allocation's learning-rate multiplier {0} must be finite and at least 0")]
    LearningRate(f64),
}

impl Plan {
    /// Checks an allocation and puts it in rank order. An omitted worker (see [`Requested::by_rank`])
    /// computes and claims nothing in that iteration.
    ///
    /// # Errors
    /// - [`PlanError::Workers`]: the allocation names other workers than this run's.
    /// - [`PlanError::Cover`]: its shares and chunks do not cover the global batch exactly once.
    /// - [`PlanError::Size`]: a local batch breaks the quantum or a cap.
    /// - [`PlanError::Tail`]: its tail breaks a rule.
    /// - [`PlanError::LearningRate`]: its multiplier is negative or not finite.
    pub fn from_response(answer: &AllocateResponse, requested: &Requested<'_>) -> Result<Self, PlanError> {
        let told = requested.by_rank(answer)?;
        let share = |told: &Option<&Allocation>| match told {
            Some(told) => Share { local_batch: told.local_batch, offset: told.offset },
            None => Share::default(),
        };
        let shares = told.iter().map(share).collect();
        let tail = tail(answer, &told)?;
        let rate = Rate::from_instruction(&answer.optimizer).map_err(PlanError::LearningRate)?;
        let budget = |told: &Option<&Allocation>| {
            let budget_s =
                told.and_then(|told| told.background).map_or(0.0, |background| background.budget_s);
            if budget_s.is_finite() { budget_s.max(0.0) } else { 0.0 }
        };
        let asked = answer.allocations.iter().any(|allocation| allocation.background.is_some());
        let budgets_s = if asked { told.iter().map(budget).collect() } else { Vec::new() };
        let plan = Self { shares, tail, rate, budgets_s };
        if plan.covers(requested.global_batch) {
            requested.check_sizes(&plan.shares, plan.tail.as_ref().map_or(&[], Tail::chunks))?;
            return Ok(plan);
        }
        let tail = plan.tail.map(|tail| (tail.offset, tail.chunks));
        Err(PlanError::Cover { expected: requested.global_batch, shares: plan.shares, tail })
    }
}

/// Returns the tail of an allocation, with the instructions for each rank.
fn tail(answer: &AllocateResponse, told: &[Option<&Allocation>]) -> Result<Option<Tail>, PlanError> {
    let Some(tail) = &answer.tail else { return Ok(None) };
    let count = tail.chunks.len();
    let said: Vec<u64> = if tail.pools.is_empty() { vec![count as u64] } else { tail.pools.clone() };
    let pools = said.iter().map(|&pool| usize::try_from(pool).unwrap_or(usize::MAX)).collect();
    let claimant = |told: &Option<&Allocation>| Claimant {
        pool: told.and_then(|told| told.pool).map(|pool| usize::try_from(pool).unwrap_or(usize::MAX)),
        speed: told
            .and_then(|told| told.predicted_speed_samples_per_s)
            .filter(|speed| speed.is_finite() && *speed > 0.0),
    };
    let claimants = told.iter().map(claimant).collect();
    Tail::new(tail.offset, tail.chunks.clone(), pools, claimants).map(Some).map_err(PlanError::Tail)
}

/// Returns the plan of an allocation, or `Ok(None)` for an allocation for fewer workers: a later one fits. It is a
/// check for `Connection::request` of the client.
///
/// # Errors
/// The message of a [`PlanError`].
pub fn checked(response: &AllocateResponse, requested: &Requested<'_>) -> Result<Option<Plan>, String> {
    match Plan::from_response(response, requested) {
        Ok(plan) => Ok(Some(plan)),
        Err(PlanError::Workers(Mismatch::Outgrown)) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::{
        BackgroundBudget, Decision, DecisionKind, JobId, LearningRateRule, OptimizerInstruction,
        Tail as Told, WorkerId,
    };

    use super::*;
    use crate::tail::chunks_max;

    fn workers(count: usize) -> Vec<WorkerId> {
        (0..count).map(|slot| WorkerId::new(format!("node/{slot}")).unwrap()).collect()
    }

    /// Returns an allocation of these (batch, offset) pairs to `node/<slot>`, in the order given.
    fn answer(shares: &[(usize, u64, u64)]) -> AllocateResponse {
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
                held_batch: None,
                pool: None,
                predicted_compute_time_s: None,
                predicted_speed_samples_per_s: None,
                speed_lower_samples_per_s: None,
                speed_upper_samples_per_s: None,
                micro_batch: None,
                background: None,
            })
            .collect();
        AllocateResponse {
            job_id: JobId::new("job").unwrap(),
            generation: 1,
            attempt: 1,
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
                lost: None,
            },
        }
    }

    /// Returns the plan of two workers from a response to a request for 40 samples.
    fn followed(
        answer: &AllocateResponse,
        generation: u64,
        follows_workers: bool,
    ) -> Result<Plan, PlanError> {
        let requested = Requested {
            workers: &workers(2),
            global_batch: 40,
            generation,
            follows_workers,
            quantum: 1,
            caps: &[],
        };
        Plan::from_response(answer, &requested)
    }

    #[test]
    fn an_allocation_is_sorted_by_rank() {
        let plan = followed(&answer(&[(1, 30, 0), (0, 10, 30)]), 1, false).unwrap();
        assert_eq!(
            plan.shares(),
            [Share { local_batch: 10, offset: 30 }, Share { local_batch: 30, offset: 0 }]
        );
        assert_eq!(plan.rate(), Rate::from(0.5));
    }

    #[test]
    fn invalid_redirects_are_rejected() {
        let foreign = followed(&answer(&[(0, 10, 0), (7, 30, 10)]), 1, false);
        assert!(
            matches!(foreign, Err(PlanError::Workers(Mismatch::Workers { foreign, .. })) if foreign == "node/7")
        );
        let twice = followed(&answer(&[(0, 10, 0), (0, 30, 10)]), 1, false);
        assert!(matches!(twice, Err(PlanError::Workers(Mismatch::Workers { .. }))));
        let left_out = followed(&answer(&[(0, 40, 0)]), 1, false);
        assert!(matches!(left_out, Err(PlanError::Workers(Mismatch::Workers { .. }))));
        let joined_since = followed(&answer(&[(0, 40, 0)]), 2, false).unwrap();
        assert_eq!(joined_since.shares(), [Share { local_batch: 40, offset: 0 }, Share::default()]);
        let outgrown = followed(&answer(&[(0, 40, 0)]), 2, true);
        assert_eq!(
            outgrown,
            Err(PlanError::Workers(Mismatch::Outgrown)),
            "the global batch is for one worker"
        );
        assert!(followed(&answer(&[(0, 10, 0), (1, 30, 10)]), 2, true).is_ok());
        for shares in [[(0, 10, 0), (1, 29, 10)], [(0, 10, 0), (1, 30, 9)], [(0, 10, 0), (1, 30, 11)]] {
            let wrong = followed(&answer(&shares), 1, false);
            assert!(matches!(wrong, Err(PlanError::Cover { .. })), "{shares:?}");
        }
    }

    #[test]
    fn sizes_that_break_the_quantum_or_a_cap_are_rejected() {
        let workers = workers(2);
        let sized = |answer: &AllocateResponse, quantum, caps: &[Option<u64>]| {
            let global_batch = answer.global_batch;
            let requested = Requested {
                workers: &workers,
                global_batch,
                generation: 1,
                follows_workers: false,
                quantum,
                caps,
            };
            Plan::from_response(answer, &requested).map_err(|error| error.to_string())
        };
        let whole = answer(&[(0, 8, 0), (1, 32, 8)]);
        assert!(sized(&whole, 8, &[None, Some(32)]).is_ok());
        let odd = sized(&answer(&[(0, 12, 0), (1, 28, 12)]), 8, &[]).unwrap_err();
        assert!(odd.contains("[12, 28] samples: must be multiples of the quantum 8"), "{odd}");
        let capped = sized(&whole, 8, &[None, Some(31)]).unwrap_err();
        assert!(capped.contains("node/1 32 samples: must be at most its max_local_batch 31"), "{capped}");
        let ragged = answer(&[(0, 8, 0), (1, 11, 8)]);
        assert!(sized(&ragged, 4, &[]).is_ok(), "one rank has the samples below one quantum");
        assert!(sized(&answer(&[(0, 9, 0), (1, 10, 9)]), 4, &[]).is_err());
        let mut tailed = hedged(&[(0, 16, 0), (1, 16, 16)], &[Some(0), Some(0)], (32, &[5, 3], &[]));
        tailed.global_batch = 40;
        assert!(sized(&tailed, 1, &[]).is_ok());
        assert!(sized(&tailed, 8, &[]).unwrap_err().contains("[16, 16, 5, 3]"), "chunks count too");
    }

    #[test]
    fn budgets_are_put_in_our_rank_order() {
        let mut answer = answer(&[(1, 30, 0), (0, 10, 30)]);
        assert_eq!(followed(&answer, 1, false).unwrap().budget_s(0), 0.0);
        for (allocation, budget_s) in answer.allocations.iter_mut().zip([0.5, -1.0]) {
            allocation.background = Some(BackgroundBudget { slack_s: 0.0, budget_s });
        }
        let plan = followed(&answer, 1, false).unwrap();
        assert_eq!((plan.budget_s(0), plan.budget_s(1), plan.budget_s(2)), (0.0, 0.5, 0.0));
        assert_eq!(plan.resized(40, 1).budget_s(1), 0.5, "the same iteration again");
        assert_eq!(plan.resized(20, 1).budget_s(1), 0.0, "no budget is known for this size");
    }

    /// Returns an allocation of these base batches and of a tail; worker `slot` claims from pool
    /// `pools[slot]`.
    fn hedged(
        bases: &[(usize, u64, u64)],
        claims: &[Option<u64>],
        tail: (u64, &[u64], &[u64]),
    ) -> AllocateResponse {
        let mut answer = answer(bases);
        for (allocation, pool) in answer.allocations.iter_mut().zip(claims) {
            allocation.pool = *pool;
            allocation.predicted_speed_samples_per_s = Some(10.0 * (allocation.rank + 1) as f64);
        }
        let (offset, chunks, pools) = tail;
        answer.tail = Some(Told { offset, chunks: chunks.to_vec(), pools: pools.to_vec() });
        answer
    }

    #[test]
    fn a_tail_is_put_in_our_rank_order() {
        let answer = hedged(&[(1, 20, 0), (0, 10, 20)], &[Some(0), Some(1)], (30, &[4, 3, 2, 1], &[3, 1]));
        let plan = followed(&answer, 1, false).unwrap();
        assert_eq!(plan.global_batch(), 40);
        let (first, second) = (plan.pool(0).unwrap(), plan.pool(1).unwrap());
        assert_eq!((first.number, first.offset, first.chunks), (1, 39, &[1][..]));
        assert_eq!((second.number, second.offset, second.chunks), (0, 30, &[4, 3, 2][..]));
        assert_eq!((first.members, first.peers.len(), first.speed), (1, 0, Some(20.0)));

        let joined_since = hedged(&[(0, 30, 0)], &[Some(0)], (30, &[10], &[]));
        let plan = followed(&joined_since, 2, false).unwrap();
        assert_eq!((plan.share(1), plan.pool(1)), (Share::default(), None), "the worker claims nothing");
        assert!(matches!(
            followed(&joined_since, 1, false),
            Err(PlanError::Workers(Mismatch::Workers { .. }))
        ));
    }

    #[test]
    fn invalid_tails_are_rejected() {
        let wrong = |bases: &[(usize, u64, u64)], claims: &[Option<u64>], tail: (u64, &[u64], &[u64])| {
            followed(&hedged(bases, claims, tail), 1, false).unwrap_err()
        };
        let bases = [(0, 10, 0), (1, 20, 10)];
        let both = [Some(0), Some(0)];
        for tail in [(30, &[4, 5][..]), (29, &[5, 5]), (30, &[5, 6]), (30, &[u64::MAX, 10]), (0, &[10])] {
            let error = wrong(&bases, &both, (tail.0, tail.1, &[]));
            assert!(matches!(error, PlanError::Cover { tail: Some(_), .. }), "{tail:?}: {error}");
        }
        let first = wrong(&[(0, 10, 10), (1, 20, 20)], &both, (0, &[10], &[]));
        assert!(matches!(first, PlanError::Cover { .. }), "the tail is not the last part: {first}");
        for (claims, chunks, pools) in [
            (both, &[][..], &[][..]),
            (both, &[5, 0, 5], &[]),
            (both, &[5, 5], &[1]),
            (both, &[5, 5], &[2, 0]),
            (both, &[5, 5], &[u64::MAX, 3]),
            (both, &[5, 5], &[1, 1]),
            ([Some(0), Some(1)], &[5, 5], &[]),
            ([None, None], &[5, 5], &[]),
        ] {
            let error = wrong(&bases, &claims, (30, chunks, pools));
            assert!(matches!(error, PlanError::Tail(_)), "{chunks:?} {pools:?} {claims:?}: {error}");
        }
        let many: Vec<u64> = vec![1; chunks_max(2) + 1];
        assert!(matches!(
            wrong(&[(0, 7, 0)], &both, (7, &many, &[])),
            PlanError::Workers(Mismatch::Workers { .. })
        ));
        assert!(matches!(wrong(&[(0, 3, 0), (1, 4, 3)], &both, (7, &many, &[])), PlanError::Tail(_)));
    }
}

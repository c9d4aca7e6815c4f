//! Facts about planned iterations that their reports do not contain.

use std::collections::BTreeMap;

use evenstep_protocol::{AllocateResponse, Allocation, DecisionKind, WorkerId};
use serde::{Deserialize, Serialize};

/// Maximum number of different plans that are kept. A client requests at most 64 iterations ahead, and a few iterations wait for
/// reports.
const PLANS_MAX: usize = 72;

/// Approximate memory of one worker in a plan, in bytes.
const PLANNED_WORKER_BYTES: u64 = 160;

/// The part of an allocation that determines how reports of its iteration are learned.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PlannedWork {
    /// The workers with samples, or with a pool of the tail. The others have nothing to report.
    pub workers: BTreeMap<WorkerId, PlannedWorker>,
    /// Workers without samples.
    pub idle: Vec<(WorkerId, Choices)>,
    /// Number of samples of all workers; 0 if the even shares are not known, so that nothing is compared.
    pub samples: u64,
    /// Whether the shares vary on purpose.
    pub is_probe: bool,
}

/// The part of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedWorker {
    /// Generation of the worker's latest join before the plan; `None` if it is unknown.
    pub joined: Option<u64>,
    /// Maximum number of samples per pass; `None` if the local batch runs in one pass.
    pub micro_batch: Option<u64>,
    /// Its samples by either choice.
    pub choices: Choices,
}

/// The samples of a worker by either choice of shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choices {
    /// With the allocation, without chunks of a tail.
    pub own: u64,
    /// With even shares.
    pub even: u64,
    /// With planned shares, while even ones are held. Otherwise the planned shares are used.
    pub held: Option<u64>,
    /// Without the tail; `None` if the allocation has no tail.
    pub without_tail: Option<u64>,
}

impl PlannedWork {
    /// Returns the planned work of an allocation. `joined` returns the generation of a worker's latest join up to a
    /// generation. `even` are the even shares by rank, if they are known.
    pub fn new(
        answer: &AllocateResponse,
        even: Option<&[u64]>,
        joined: impl Fn(&WorkerId, u64) -> Option<u64>,
    ) -> Self {
        let (mut workers, mut idle) = (Vec::new(), Vec::new());
        for (rank, share) in answer.allocations.iter().enumerate() {
            let even = even.and_then(|even| even.get(rank).copied()).unwrap_or(share.local_batch);
            let (worker, choices) = (
                share.worker.clone(),
                Choices {
                    own: share.local_batch,
                    even,
                    held: share.held_batch,
                    without_tail: answer.tail.as_ref().and(share.planned_batch),
                },
            );
            if share.local_batch > 0 || share.pool.is_some() {
                let joined = joined(&worker, answer.generation);
                workers.push((worker, PlannedWorker { joined, micro_batch: share.micro_batch, choices }));
            } else {
                idle.push((worker, choices));
            }
        }
        let samples = even.map_or(0, |_| answer.global_batch);
        Self { workers: workers.into_iter().collect(), idle, samples, is_probe: is_probe(answer) }
    }
}

/// Whether the shares of an allocation vary on purpose.
pub fn is_probe(answer: &AllocateResponse) -> bool {
    answer.decision.kind == DecisionKind::Profiling
}

/// Whether two allocations of one job plan the same work, by a comparison that builds nothing.
pub fn is_same_work(one: &AllocateResponse, other: &AllocateResponse) -> bool {
    let work = |share: &Allocation| {
        (share.local_batch, share.pool.is_some(), share.micro_batch, share.held_batch, share.planned_batch)
    };
    // One generation has one list of workers.
    one.generation == other.generation
        && one.global_batch == other.global_batch
        && is_probe(one) == is_probe(other)
        && one.allocations.iter().map(work).eq(other.allocations.iter().map(work))
}

/// The planned work of recent iterations. A plan holds until the next planned iteration: clients keep their plan while none
/// arrives.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Plans {
    /// Each planned iteration; `None` if the plan before it holds.
    planned: BTreeMap<u64, Option<PlannedWork>>,
}

impl Plans {
    /// Sets the plan of an iteration. The plans of other planned iterations stay. Returns whether the plan is another than the one
    /// that held before.
    pub fn set(&mut self, iteration: u64, work: PlannedWork) -> bool {
        if self.at(iteration) == Some(&work) {
            self.repeat(iteration);
            return false;
        }
        let next = self.planned.range(iteration.saturating_add(1)..).next();
        if let Some((next, None)) = next {
            let (next, held) = (*next, self.at(*next).cloned());
            self.planned.insert(next, held);
        }
        self.planned.insert(iteration, Some(work));
        self.trim();
        true
    }

    /// Sets the plan of an iteration to the one that holds.
    pub fn repeat(&mut self, iteration: u64) {
        self.planned.entry(iteration).or_insert(None);
        self.trim();
    }

    fn trim(&mut self) {
        while self.planned.len() > PLANS_MAX {
            self.drop_first();
        }
    }

    /// Drops the first planned iteration. Its plan goes to the next one, if it holds there.
    fn drop_first(&mut self) {
        let first = self.planned.pop_first();
        if let (Some((_, held)), Some(mut next)) = (first, self.planned.first_entry()) {
            next.get_mut().is_none().then(|| next.insert(held));
        }
    }

    /// Whether stored plans are within their limit.
    pub fn is_valid(&self) -> bool {
        self.planned.len() <= PLANS_MAX
    }

    /// Returns the approximate memory of the plans, in bytes.
    pub fn bytes(&self) -> u64 {
        let works = self.planned.values().flatten();
        let workers: usize = works.map(|work| work.workers.len() + work.idle.len()).sum();
        workers as u64 * PLANNED_WORKER_BYTES
    }

    /// Returns the plan of an iteration; `None` if it is unknown.
    pub fn at(&self, iteration: u64) -> Option<&PlannedWork> {
        self.planned.range(..=iteration).rev().find_map(|(_, work)| work.as_ref())
    }

    /// Returns the number of plans from this iteration on whose shares vary on purpose.
    pub fn probes_from(&self, iteration: u64) -> usize {
        self.planned
            .range(iteration..)
            .filter(|(_, work)| work.as_ref().is_some_and(|work| work.is_probe))
            .count()
    }

    /// Drops plans that no iteration from `first` on needs.
    pub fn forget_before(&mut self, first: u64) {
        while self.planned.keys().nth(1).is_some_and(|next| *next <= first) {
            self.drop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn work(kind: u64) -> PlannedWork {
        let worker = PlannedWorker {
            joined: Some(kind),
            micro_batch: None,
            choices: Choices { own: 1, even: 1, held: None, without_tail: None },
        };
        PlannedWork {
            workers: BTreeMap::from([(WorkerId::new("a").unwrap(), worker)]),
            samples: 1,
            ..PlannedWork::default()
        }
    }

    proptest! {
        /// Compares with a list that holds the plan of every iteration.
        #[test]
        fn a_plan_holds_until_the_next_planned_iteration(
            changes in prop::collection::vec((0u64..40, 0u64..3), 0..60),
        ) {
            let (mut plans, mut planned) = (Plans::default(), BTreeMap::new());
            let mut truth = vec![None; 50];
            for (iteration, kind) in changes {
                plans.set(iteration, work(kind));
                planned.insert(iteration, work(kind));
                for (at, held) in truth.iter_mut().enumerate() {
                    *held = planned.range(..=at as u64).next_back().map(|(_, work)| work.clone());
                    prop_assert_eq!(plans.at(at as u64), held.as_ref());
                }
            }
            plans.forget_before(20);
            for (at, expected) in truth.iter().enumerate().skip(20) {
                prop_assert_eq!(plans.at(at as u64), expected.as_ref());
            }
            prop_assert!(plans.planned.range(..20).count() <= 1);
        }
    }
}

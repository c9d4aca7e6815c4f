//! Whether an iteration has a tail, and how that is said on the wire.

use std::collections::BTreeMap;

use evenstep_core::allocate::{Scenarios, Share};
use evenstep_core::hedge::{ChunkCost, Hedged, POOL_MAX, Terms, hedge};
use evenstep_core::plan::{Plan, WorkerOutlook};
use evenstep_protocol::{AllocateAnswer, Hedge, HedgeView, Tail, WorkerId};

use super::bounds::Bounds;
use super::state::JobState;

/// How often a tail is made anew without those who could not hold its chunks.
const TRIES_MAX: usize = 4;

/// A plan of which a part is left to a tail.
#[derive(Debug)]
pub struct Hedging {
    /// Samples by rank that each worker does first.
    pub bases: Vec<u64>,
    /// By rank: the pool that it claims from.
    pub pools: Vec<Option<u64>>,
    /// By rank: the largest chunk that it may claim; 0 where it claims none.
    pub largest_chunks: Vec<u64>,
    /// What is claimed.
    pub tail: Tail,
    /// Expected time of the step in seconds.
    pub step_time_s: f64,
}

impl JobState {
    /// Hedges a plan. `None` where the job does not want it, fewer than two workers can claim, somebody is unmeasured, or no tail
    /// is expected to shorten the step.
    pub fn hedge(
        &self,
        live: &[WorkerId],
        plan: &Plan,
        outlooks: &[WorkerOutlook],
        bounds: &[Bounds],
        scenarios: &Scenarios,
    ) -> Option<Hedging> {
        if self.spec.hedge == Hedge::Off {
            return None;
        }
        let cost = |id: &WorkerId| self.claims(id).then(|| self.models.chunk_cost(id));
        let mut costs: Vec<Option<ChunkCost>> = live.iter().map(cost).collect();
        let share = |(outlook, bounds): (&WorkerOutlook, &Bounds)| {
            // What fits at once does not bound what is done one after the other.
            Some(Share { cap: bounds.in_all, ..outlook.share()? })
        };
        let shares: Vec<Share> = outlooks.iter().zip(bounds).map(share).collect::<Option<_>>()?;
        let quantum = self.spec.quantum;
        let min_chunk = self.spec.min_chunk.unwrap_or(quantum).max(quantum).next_multiple_of(quantum);
        let terms = Terms { cost: self.models.claim_cost(), min_chunk, quantum, pool_max: POOL_MAX };
        for _ in 0..TRIES_MAX {
            if costs.iter().flatten().count() < 2 {
                return None;
            }
            let hedged = hedge(&plan.batches, &shares, &costs, scenarios, &terms)?;
            let unfit = unfit(&hedged, bounds);
            if unfit.is_empty() {
                return Some(Hedging::new(hedged));
            }
            unfit.into_iter().for_each(|rank| costs[rank] = None);
        }
        None
    }

    /// Whether a worker can claim.
    pub fn claims(&self, id: &WorkerId) -> bool {
        self.workers.get(id).is_some_and(|worker| worker.request.claims)
    }

    /// How the latest answer hedged; `None` where no answer could.
    pub fn hedge_view(&self) -> Option<HedgeView> {
        let can = self.members.live().filter(|id| self.claims(id)).count() >= 2;
        (can && self.spec.hedge == Hedge::Auto).then(|| HedgeView {
            tail_share: self.last_tail.share,
            chunks: self.last_tail.chunks,
            claim_time_s: self.models.claim_cost().latency_s,
        })
    }
}

/// Members of a pool whose memory does not hold its largest chunk.
fn unfit(hedged: &Hedged, bounds: &[Bounds]) -> Vec<usize> {
    let unfit = |rank: &usize, largest: u64| bounds[*rank].at_once.is_some_and(|most| largest > most);
    let pools = hedged.pools.iter().flat_map(|pool| {
        let largest = pool.chunks.iter().copied().max().unwrap_or(0);
        pool.members.iter().copied().filter(move |rank| unfit(rank, largest))
    });
    pools.collect()
}

impl Hedging {
    fn new(hedged: Hedged) -> Self {
        let mut pools = vec![None; hedged.bases.len()];
        let mut largest_chunks = vec![0; hedged.bases.len()];
        for (number, pool) in (0..).zip(&hedged.pools) {
            for rank in &pool.members {
                pools[*rank] = Some(number);
                largest_chunks[*rank] = pool.chunks.iter().copied().max().unwrap_or(0);
            }
        }
        let sizes = hedged.pools.iter().map(|pool| pool.chunks.len() as u64);
        let tail = Tail {
            offset: hedged.bases.iter().sum(),
            chunks: hedged.pools.iter().flat_map(|pool| pool.chunks.iter().copied()).collect(),
            pools: if hedged.pools.len() > 1 { sizes.collect() } else { Vec::new() },
        };
        Self { bases: hedged.bases, pools, largest_chunks, tail, step_time_s: hedged.step_time_s }
    }
}

/// What the latest answer left to a tail.
#[derive(Debug, Default)]
pub struct LastTail {
    /// Share of its samples.
    share: f64,
    chunks: u64,
    pools: BTreeMap<WorkerId, u64>,
}

impl LastTail {
    /// Of an answer.
    pub fn of(answer: &AllocateAnswer) -> Self {
        let Some(tail) = &answer.tail else { return Self::default() };
        let pools = answer.allocations.iter().filter_map(|share| Some((share.worker.clone(), share.pool?)));
        Self {
            share: tail.chunks.iter().sum::<u64>() as f64 / answer.global_batch as f64,
            chunks: tail.chunks.len() as u64,
            pools: pools.collect(),
        }
    }

    /// The pool that a worker claims from.
    pub fn pool(&self, id: &WorkerId) -> Option<u64> {
        self.pools.get(id).copied()
    }

    /// For people; empty where there is no tail.
    pub fn in_words(&self) -> String {
        match self.chunks {
            0 => String::new(),
            1 => format!("; {:.0} % of the samples in a tail of 1 chunk", self.share * 100.0),
            chunks => format!("; {:.0} % of the samples in a tail of {chunks} chunks", self.share * 100.0),
        }
    }
}

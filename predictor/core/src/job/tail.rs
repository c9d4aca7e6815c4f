//! The shared tail of an iteration, and its wire type.

use std::collections::BTreeMap;
use std::fmt::Write;

use evenstep_protocol::{AllocateResponse, Hedge, HedgeView, Tail, WorkerId};

use super::bounds::Bounds;
use super::known::Known;
use super::state::JobState;
use crate::allocate::{Scenarios, SplitWorker};
use crate::hedge::{ChunkCost, Hedged, POOL_MAX, Terms, hedge};
use crate::plan::{Split, WorkerOutlook};

/// Maximum number of attempts. Each excludes the workers whose memory could not hold the chunks of the
/// previous attempt.
const TRIES_MAX: usize = 4;

/// A plan with a shared tail.
#[derive(Debug)]
pub struct Hedging {
    /// Base batches by rank.
    pub bases: Vec<u64>,
    /// Pool that each worker claims from, by rank.
    pub pools: Vec<Option<u64>>,
    /// Largest chunk that each worker may claim, by rank; 0 if it claims none.
    pub largest_chunks: Vec<u64>,
    /// The shared tail.
    pub tail: Tail,
    /// Expected step time in seconds.
    pub step_time_s: f64,
}

impl JobState {
    /// Returns a plan with a shared tail, or `None` in these cases:
    ///
    /// - the job turned tails off
    /// - fewer than two workers can claim
    /// - a worker is unmeasured
    /// - no tail is expected to shorten the step
    pub(super) fn hedge(
        &self,
        known: &[Known<'_>],
        plan: &Split,
        outlooks: &[WorkerOutlook],
        bounds: &[Bounds],
        scenarios: &Scenarios,
    ) -> Option<Hedging> {
        if self.spec.hedge == Hedge::Off {
            return None;
        }
        let cost = |known: &Known<'_>| {
            let claims = known.state.is_some_and(|state| state.request.claims);
            claims.then(|| known.model.map_or_else(ChunkCost::default, |model| model.chunks))
        };
        let mut costs: Vec<Option<ChunkCost>> = known.iter().map(cost).collect();
        let share = |(outlook, bounds): (&WorkerOutlook, &Bounds)| {
            // A cap on the samples at once does not limit the sum of several chunks.
            Some(SplitWorker { cap: bounds.max_total_batch, ..outlook.share()? })
        };
        let shares: Vec<SplitWorker> = outlooks.iter().zip(bounds).map(share).collect::<Option<_>>()?;
        let quantum = self.spec.quantum;
        let min_chunk = self.spec.min_chunk.unwrap_or(quantum).max(quantum).next_multiple_of(quantum);
        let terms =
            Terms { cost: self.current_models().claim_cost(), min_chunk, quantum, pool_max: POOL_MAX };
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

    /// Returns statistics of the latest tail. `None` if fewer than two live workers can claim, or the job
    /// turned tails off.
    pub fn hedge_view(&self) -> Option<HedgeView> {
        let claims = |id: &&WorkerId| self.workers.get(*id).is_some_and(|worker| worker.request.claims);
        let can = self.members.live().filter(claims).count() >= 2;
        (can && self.spec.hedge == Hedge::Auto).then(|| HedgeView {
            tail_share: self
                .last_allocation
                .as_deref()
                .filter(|last| last.tail.is_some())
                .map_or(0.0, tail_share),
            chunks: self.last_allocation.as_deref().map_or(0, chunks),
            claim_time_s: self.current_models().claim_cost().latency_s,
        })
    }

    /// Returns the pool that each worker claims from in the latest allocation.
    pub fn pools(&self) -> BTreeMap<&WorkerId, u64> {
        let shares = self.last_allocation.iter().filter(|last| last.tail.is_some());
        let shares = shares.flat_map(|last| &last.allocations);
        shares.filter_map(|share| Some((&share.worker, share.pool?))).collect()
    }
}

/// Returns the members of pools whose memory cannot hold the largest chunk of their pool.
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

/// Returns the share of an allocation's samples in its tail.
fn tail_share(answer: &AllocateResponse) -> f64 {
    let samples = answer.tail.iter().flat_map(|tail| &tail.chunks).sum::<u64>();
    samples as f64 / answer.global_batch as f64
}

fn chunks(answer: &AllocateResponse) -> u64 {
    answer.tail.as_ref().map_or(0, |tail| tail.chunks.len() as u64)
}

/// Appends the tail to the reason of an allocation that has one.
pub fn append_reason(answer: &mut AllocateResponse) {
    let percent = tail_share(answer) * 100.0;
    if chunks(answer) > 0 {
        // Writing to a string cannot fail.
        let _ = write!(answer.decision.reason, "; {percent:.0} % of the samples are claimed on demand");
    }
}

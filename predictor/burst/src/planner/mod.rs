//! Burst-parallel plans: where the global batch cannot grow, each layer gets just the GPUs that it can use (DeepPool, arXiv 2112.10065).
//!
//! ```text
//! layer time = transfers into it + compute + gradient sum           amplification = layer time * GPUs / (the same on one GPU)
//! iteration = sum over layers of their times                        GPU time = sum over layers of time * GPUs
//! transfer = 2 * (bytes / bandwidth + latency), 0 where nothing moves: bytes = 4 * outputs * the most samples that a GPU sends or
//!            receives; there and back (activations, then their gradients)
//! ```
//!
//! A layer on n GPUs runs on the n fastest, so what stays in place is not moved, and all layers share the fastest GPU. Hence one
//! layer runs after another, **also those of branches beside each other**: on the same GPUs there is nothing to gain, and on
//! disjoint ones the placement would be a scheduling problem without an exact answer in this time. A layer that reads several others
//! pays for all transfers, and all of them count for its amplification.
//!
//! [`plan()`] is exact: the least iteration time; of plans alike the least GPU time, then the fewest GPUs (summed over layers). The
//! amplification limit is never broken: one GPU is always legal and layers that are short on one GPU are exempt, nothing else is. Samples
//! are shared by speed, parts rounded up; a layer takes as long as the last of its GPUs. Under a memory cap everything is held
//! at once, so it binds the fastest GPU, which has the most of every layer.
//!
//! - `problem`, `error`, `check`: what is asked, and what is wrong with it
//! - `shares`, `costs`: who has which samples; what each layer and each change of GPUs costs
//! - `label`, `reduce`: the dynamic program
//! - `price`: what a memory cap that matters leaves of it
//! - `answer`: the plan, its timeline and its alternatives
//! - [`front()`]: what each limit buys

mod answer;
mod check;
mod costs;
mod error;
mod front;
mod label;
mod price;
mod problem;
mod reduce;
mod shares;

pub use answer::{Alternative, Plan, PlannedLayer};
pub use error::{BurstError, Infeasible};
pub use front::{Front, FrontPoint, front};
pub use problem::{
    AllReduce, BYTES_MAX, COUNTS_MAX, Cost, EDGES_MAX, GPUS_MAX, INPUTS_MAX, Input, LAYERS_MAX, Layer, Limit,
    Memory, Network, Problem, US_MAX, VALUES_MAX,
};

use answer::{answer, memory_bytes};
use check::check;
use costs::{Costs, in_us};
use price::decide_capped;
use reduce::{Decided, Failure, decide};

/// The best plan.
///
/// # Errors
/// [`BurstError::Infeasible`] where rules leave no plan, and says which; any other where the problem itself is wrong.
pub fn plan(problem: &Problem) -> Result<Plan, BurstError> {
    check(problem)?;
    Planner { costs: Costs::new(problem)? }.plan(problem.limit)
}

/// A problem that can be planned under several limits.
struct Planner<'a> {
    costs: Costs<'a>,
}

impl<'a> Planner<'a> {
    fn plan(&self, limit: Option<Limit>) -> Result<Plan, BurstError> {
        let costs = &self.costs;
        let light = decide(costs, limit).map_err(|failure| self.failed(failure, limit))?;
        let Some(cap) = costs.problem.memory.map(|memory| memory.bytes_per_gpu) else {
            return Ok(answer(costs, &light.counts, limit, !light.thinned));
        };
        // Mostly the cap does not matter.
        if memory_bytes(costs, &light.counts) <= cap.into() {
            return Ok(answer(costs, &light.counts, limit, !light.thinned));
        }
        let Some(spare) = u128::from(cap).checked_sub(self.least_bytes()) else {
            return Err(self.over_cap(cap).into());
        };
        let above_least = memory_bytes(costs, &light.counts) - self.least_bytes();
        match decide_capped(costs, limit, spare, (light.time_fs, above_least)) {
            Ok(Decided { counts, thinned, .. }) => Ok(answer(costs, &counts, limit, !thinned)),
            Err(true) => Err(Infeasible::Undecided { cap_bytes: cap }.into()),
            Err(false) => {
                let limit = limit.map_or(f64::INFINITY, |limit| limit.amplification);
                Err(Infeasible::LimitAndMemory { limit, cap_bytes: cap }.into())
            }
        }
    }

    fn failed(&self, failure: Failure, limit: Option<Limit>) -> BurstError {
        match failure {
            Failure::At(layer) => self.over_limit(layer, limit).into(),
            Failure::Crossing(layer) => {
                BurstError::NotSeriesParallel { layer: self.costs.problem.layers[layer].name.clone() }
            }
        }
    }

    fn over_limit(&self, layer: usize, limit: Option<Limit>) -> Infeasible {
        let one_us = self.costs.one_gpu_fs[layer].map_or(0.0, in_us);
        let choices = self.costs.possible(layer);
        let ratios = choices.map(|(gpus, choice)| in_us(choice.time_fs()) * gpus as f64 / one_us);
        Infeasible::Limit {
            layer: self.costs.problem.layers[layer].name.clone(),
            limit: limit.map_or(f64::INFINITY, |limit| limit.amplification),
            least: ratios.fold(f64::INFINITY, f64::min),
        }
    }

    /// What each layer needs on the fastest GPU, at the least.
    fn least(&self) -> impl Iterator<Item = u128> {
        let layers = 0..self.costs.choices.len();
        let bytes = |layer| self.costs.possible(layer).map(|(_, choice)| choice.memory_bytes).min();
        layers.map(move |layer| bytes(layer).unwrap_or(0))
    }

    fn least_bytes(&self) -> u128 {
        self.least().sum()
    }

    fn over_cap(&self, cap_bytes: u64) -> Infeasible {
        let (layer_bytes, layer) = self.least().zip(0..).max_by_key(|(bytes, _)| *bytes).unwrap_or_default();
        Infeasible::Memory {
            needed_bytes: self.least_bytes().min(u64::MAX.into()) as u64,
            cap_bytes,
            layer: self.costs.problem.layers[layer].name.clone(),
            layer_bytes: layer_bytes.min(u64::MAX.into()) as u64,
        }
    }
}

#[cfg(test)]
mod tests;

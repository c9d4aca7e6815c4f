//! The best plan under an amplification limit and a memory cap.

use super::answer::{Planned, answer, memory_bytes};
use super::check::check;
use super::costs::{Costs, in_us};
use super::error::{BurstError, Infeasible};
use super::fold::{Failure, Solution, solve_uncapped};
use super::price::solve_capped;
use super::problem::{Limit, Problem};

/// Returns the best plan.
///
/// # Errors
/// [`BurstError::Infeasible`] if no plan satisfies the limits, with the limit in question; any other variant
/// if the problem is invalid.
pub fn plan(problem: &Problem) -> Result<Planned, BurstError> {
    check(problem)?;
    Planner { costs: Costs::new(problem)? }.plan(problem.limit)
}

/// A problem that can be planned under several limits.
pub(super) struct Planner<'a> {
    pub costs: Costs<'a>,
}

impl<'a> Planner<'a> {
    pub fn plan(&self, limit: Option<Limit>) -> Result<Planned, BurstError> {
        let costs = &self.costs;
        let light = solve_uncapped(costs, limit).map_err(|failure| self.failed(failure, limit))?;
        let Some(cap) = costs.problem.memory.map(|memory| memory.bytes_per_gpu) else {
            return Ok(answer(costs, &light.counts, limit, !light.dropped_candidates));
        };
        // In most cases the cap does not bind.
        if memory_bytes(costs, &light.counts) <= cap.into() {
            return Ok(answer(costs, &light.counts, limit, !light.dropped_candidates));
        }
        let Some(spare) = u128::from(cap).checked_sub(self.least_bytes()) else {
            return Err(self.over_cap(cap).into());
        };
        let above_least = memory_bytes(costs, &light.counts) - self.least_bytes();
        match solve_capped(costs, limit, spare, (light.time_fs, above_least)) {
            Ok(Solution { counts, dropped_candidates, .. }) => {
                Ok(answer(costs, &counts, limit, !dropped_candidates))
            }
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

    /// Returns the minimum memory of each layer on the fastest GPU.
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

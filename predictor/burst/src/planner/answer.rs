//! The computed plan: GPUs and times of each layer, and the alternatives.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::costs::{Costs, exempt, in_us};
use super::problem::Limit;

/// A burst-parallel plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// The layers in execution order, which is the order of the problem's layers.
    pub layers: Vec<PlannedLayer>,
    /// Iteration time, in microseconds.
    pub iteration_us: f64,
    /// GPU time, in microseconds: the sum over layers of time multiplied by GPUs.
    pub gpu_us: f64,
    /// GPUs by speed, the fastest first, as indices into the problem's speeds. A layer on n GPUs runs on the
    /// first n.
    pub gpu_order: Vec<usize>,
    /// Samples of each GPU, the fastest first, by GPU count used in the plan. Their sum is the global batch.
    /// No GPU has more samples than its planned time covers.
    pub samples: BTreeMap<usize, Vec<u64>>,
    /// Idle time of each GPU in microseconds, in the order of the problem's speeds. The sum is
    /// `iteration_us * GPUs - gpu_us`.
    pub idle_us: Vec<f64>,
    /// Memory use of the GPU that runs all layers, in bytes; 0 if sizes are unknown.
    pub memory_bytes: u64,
    /// All layers on the largest allowed count, without the amplification limit; `None` if a layer or the cap
    /// does not allow it.
    pub data_parallel: Option<Alternative>,
    /// All layers on the fastest GPU; `None` if count 1 is not allowed, or a layer or the cap does not allow
    /// it.
    pub one_gpu: Option<Alternative>,
    /// Whether the plan is proven optimal. If too many candidates differ in memory or transfers, some are
    /// dropped and this is false. The plan still satisfies limit and cap.
    pub exact: bool,
}

/// One layer of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedLayer {
    /// Number of GPUs.
    pub gpus: usize,
    /// Start of the layer, beginning with its transfers, in microseconds from the start of the iteration.
    pub begin_us: f64,
    /// End of the layer, in microseconds from the start of the iteration.
    pub end_us: f64,
    /// Time of the transfers from its inputs, in microseconds.
    pub transfer_us: f64,
    /// Compute time, in microseconds; includes the gradient sum if the cost is an explicit table.
    pub compute_us: f64,
    /// Time of the gradient sum, in microseconds; `None` if an explicit table includes it in the compute
    /// time.
    pub sync_us: Option<f64>,
    /// GPU time divided by GPU time on one GPU; `None` if the latter is unknown or 0.
    pub amplification: Option<f64>,
    /// Whether the amplification limit does not apply: the layer has one GPU or is short on one GPU. Without
    /// a limit, all layers are exempt.
    pub exempt: bool,
}

/// Times of an alternative to the plan.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = BurstAlternative)]
pub struct Alternative {
    /// Number of GPUs of every layer.
    #[schema(value_type = u64)]
    pub gpus: usize,
    /// Iteration time, in microseconds.
    pub iteration_us: f64,
    /// GPU time of all layers, in microseconds.
    pub gpu_us: f64,
}

/// Returns the plan with these counts by layer, as indices into the allowed counts. `exact` becomes
/// [`Planned::exact`].
pub(super) fn answer(costs: &Costs, counts: &[usize], limit: Option<Limit>, exact: bool) -> Planned {
    let mut layers = Vec::with_capacity(counts.len());
    let mut busy_fs = vec![0u128; costs.shares.order.len() + 1];
    let mut now_fs = 0u128;
    for (layer, &count) in counts.iter().enumerate() {
        let Some(times) = Times::of(costs, layer, counts) else { continue };
        let gpus = costs.counts[count];
        let begin_fs = now_fs;
        now_fs += times.all_fs();
        busy_fs[gpus] += times.all_fs();
        let one_gpu_fs = costs.one_gpu_fs[layer];
        let free = |limit: Limit| one_gpu_fs.is_some_and(|one_fs| exempt(limit, one_fs, gpus));
        let ratio = |one_fs: u128| in_us(times.all_fs()) * gpus as f64 / in_us(one_fs);
        layers.push(PlannedLayer {
            gpus,
            begin_us: in_us(begin_fs),
            end_us: in_us(now_fs),
            transfer_us: in_us(times.transfer_fs),
            compute_us: in_us(times.compute_fs),
            sync_us: times.sync_fs.map(in_us),
            amplification: one_gpu_fs.filter(|one_fs| *one_fs > 0).map(ratio),
            exempt: limit.is_none_or(free),
        });
    }
    // A layer on n GPUs keeps the first n busy.
    let mut idle_us = vec![0.0; costs.shares.order.len()];
    let mut by_this_fs = 0u128;
    for (place, gpu) in costs.shares.order.iter().enumerate().rev() {
        by_this_fs += busy_fs[place + 1];
        idle_us[*gpu] = in_us(now_fs - by_this_fs);
    }
    let gpu_fs: u128 = busy_fs.iter().zip(0..).map(|(fs, gpus)| fs * gpus).sum();
    let samples = layers.iter().map(|layer| layer.gpus).collect::<BTreeSet<_>>().into_iter();
    let largest = costs.counts.len() - 1;
    Planned {
        samples: samples.map(|gpus| (gpus, costs.shares.samples(gpus))).collect(),
        layers,
        iteration_us: in_us(now_fs),
        gpu_us: in_us(gpu_fs),
        gpu_order: costs.shares.order.clone(),
        idle_us,
        memory_bytes: memory_bytes(costs, counts).min(u64::MAX.into()) as u64,
        data_parallel: alternative(costs, largest),
        one_gpu: costs.counts.iter().position(|gpus| *gpus == 1).and_then(|one| alternative(costs, one)),
        exact,
    }
}

/// Returns the memory use of the fastest GPU, which runs all layers.
pub(super) fn memory_bytes(costs: &Costs, counts: &[usize]) -> u128 {
    let layers = costs.choices.iter().zip(counts);
    layers.filter_map(|(choices, count)| choices[*count]).map(|choice| choice.memory_bytes).sum()
}

fn alternative(costs: &Costs, count: usize) -> Option<Alternative> {
    let counts = vec![count; costs.choices.len()];
    let times = |layer| Times::of(costs, layer, &counts).map(|times| times.all_fs());
    let all_fs = (0..counts.len()).try_fold(0u128, |sum, layer| Some(sum + times(layer)?))?;
    let cap = costs.problem.memory.map_or(u128::MAX, |memory| memory.bytes_per_gpu.into());
    let gpus = costs.counts[count];
    let alternative = Alternative { gpus, iteration_us: in_us(all_fs), gpu_us: in_us(all_fs * gpus as u128) };
    (memory_bytes(costs, &counts) <= cap).then_some(alternative)
}

struct Times {
    transfer_fs: u128,
    compute_fs: u128,
    sync_fs: Option<u128>,
}

impl Times {
    /// Returns the times of a layer; `None` if its count is not possible.
    fn of(costs: &Costs, layer: usize, counts: &[usize]) -> Option<Self> {
        let choice = costs.choices[layer][counts[layer]]?;
        let inputs = costs.problem.layers[layer].inputs.iter();
        let transfer_fs =
            inputs.map(|input| costs.transfer_fs(input, counts[input.layer], counts[layer])).sum();
        Some(Self { transfer_fs, compute_fs: choice.compute_fs, sync_fs: choice.sync_fs })
    }

    fn all_fs(&self) -> u128 {
        self.transfer_fs + self.compute_fs + self.sync_fs.unwrap_or(0)
    }
}

//! The compared plans.

use anyhow::{Result, ensure};

use crate::burst::{BurstPlan, PlannedLayer};
use crate::network::{Layer, Network};

/// Returns a plan with gaps: the first and the last layer on all ranks, the other layers on rank 0 only.
///
/// # Errors
/// Fails if the global batch is smaller than the number of ranks.
pub fn burst(model: &Network, global_batch: u64, ranks: usize) -> Result<BurstPlan> {
    ensure!(
        global_batch >= ranks as u64,
        "--global-batch {global_batch}: must be at least the number of ranks, {ranks}"
    );
    let last = model.layers().len().saturating_sub(1);
    let layer = |(at, layer): (usize, &Layer)| {
        planned(layer.name(), global_batch, if at == 0 || at == last { ranks } else { 1 })
    };
    let layers = model.layers().iter().enumerate().map(layer).collect();
    Ok(BurstPlan { gpus: ranks, global_batch, iteration_us: 0.0, layers })
}

/// Returns a plan with every layer of `plan` on all ranks.
pub fn data_parallel(plan: &BurstPlan) -> BurstPlan {
    on_all(plan, plan.gpus)
}

/// Returns a plan with every layer of `plan` on rank 0.
pub fn one_rank(plan: &BurstPlan) -> BurstPlan {
    on_all(plan, 1)
}

fn on_all(plan: &BurstPlan, gpus: usize) -> BurstPlan {
    let layer = |layer: &PlannedLayer| planned(&layer.name, plan.global_batch, gpus);
    BurstPlan { layers: plan.layers.iter().map(layer).collect(), ..plan.clone() }
}

/// Returns a layer with even shares and without predicted times.
fn planned(name: &str, global_batch: u64, gpus: usize) -> PlannedLayer {
    let ranks = gpus as u64;
    let share = |rank: u64| global_batch / ranks + u64::from(rank < global_batch % ranks);
    PlannedLayer {
        name: name.to_owned(),
        gpus,
        samples: (0..ranks).map(share).collect(),
        start_us: 0.0,
        transfer_us: 0.0,
        compute_us: 0.0,
        sync_us: None,
    }
}

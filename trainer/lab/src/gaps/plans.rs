//! The plans that are compared.

use anyhow::{Result, ensure};

use crate::burst::{Plan, PlannedLayer};
use crate::network::{Layer, Network};

/// A plan that leaves the other ranks idle: the first and the last layer on all ranks, those between on rank 0.
///
/// # Errors
/// There are fewer samples than ranks.
pub fn burst(model: &Network, global_batch: u64, ranks: usize) -> Result<Plan> {
    ensure!(
        global_batch >= ranks as u64,
        "--global-batch {global_batch}: must hold a sample for each of {ranks} ranks"
    );
    let last = model.layers().len().saturating_sub(1);
    let layer = |(at, layer): (usize, &Layer)| {
        planned(layer.name(), global_batch, if at == 0 || at == last { ranks } else { 1 })
    };
    let layers = model.layers().iter().enumerate().map(layer).collect();
    Ok(Plan { gpus: ranks, global_batch, iteration_us: 0.0, layers })
}

/// The same layers, all on all ranks.
pub fn data_parallel(plan: &Plan) -> Plan {
    on_all(plan, plan.gpus)
}

/// The same layers, all on rank 0.
pub fn one_rank(plan: &Plan) -> Plan {
    on_all(plan, 1)
}

fn on_all(plan: &Plan, gpus: usize) -> Plan {
    let layer = |layer: &PlannedLayer| planned(&layer.name, plan.global_batch, gpus);
    Plan { layers: plan.layers.iter().map(layer).collect(), ..plan.clone() }
}

/// A layer with even shares, of which nobody knows how long it takes.
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

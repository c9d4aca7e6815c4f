//! The plans that are compared.

use anyhow::{Result, ensure};

use super::args::GapsArgs;
use crate::burst::{Plan, PlannedLayer};
use crate::model::{Layer, Model};

/// The plan that was given, or one that leaves the other ranks idle: the first and the last layer on all ranks, those between on rank 0.
///
/// # Errors
/// It cannot be read, or is for another number of GPUs.
pub fn burst(args: &GapsArgs, model: &Model, ranks: usize) -> Result<Plan> {
    if let Some(path) = &args.plan {
        let plan = Plan::read(path)?;
        ensure!(plan.gpus == ranks, "the plan is for {} GPUs and there are {ranks} cores", plan.gpus);
        return Ok(plan);
    }
    let global_batch = args.global_batch;
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
pub fn data_parallel(plan: &Plan, ranks: usize) -> Plan {
    on_all(plan, ranks)
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

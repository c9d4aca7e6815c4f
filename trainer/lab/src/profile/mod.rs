//! `profile`: measures the layers of a network on this machine, as input for burst-parallel plans.
//!
//! Layers are measured in whole iterations of the executor that also runs plans, so that caches and memory
//! behave as in a plan:
//!
//! - By local batch (`--batches`): every worker computes its samples alone, all workers at the same time.
//!   With several workers the network is measured as well (`network`), over the groups of the run, at the
//!   sizes that this model sends and sums.
//! - By GPU count, for one global batch (`--global-batch`): explicit tables of the compute time with gradient
//!   sum, and of the transfers between different counts. Use these tables if workers slow each other down,
//!   for example on a shared memory bus.
//!
//! The compute time of a layer is the sum of its forward, backward and optimizer step. The loss counts as
//! part of the last layer.

mod args;
mod bench;
mod curves;
mod network;
mod tables;

use anyhow::{Context, Result};
use evenstep_protocol::BurstProfile;

use crate::processes;
use evenstep_report::output::put;
use evenstep_trainer::launch::LaunchOutcome;
use evenstep_trainer::model::device_name;
use evenstep_trainer::training::InvalidArgs;

pub use args::ProfileArgs;
use bench::Bench;

/// Starts the workers, or runs as one of them.
///
/// # Errors
/// Fails if options contradict each other, the file cannot be written, or a worker fails.
pub fn run(args: &ProfileArgs) -> Result<LaunchOutcome> {
    args.task.check()?;
    let workers = args.workers as usize;
    if let Some(batch) = args.global_batch.filter(|&batch| batch < workers as u64) {
        return Err(InvalidArgs(format!(
            "--global-batch {batch}: must be at least the number of workers, {workers}"
        ))
        .into());
    }
    let work = |process| work(Bench::new(args, process)?);
    processes::run((&args.processes, &args.task), workers, "profile", || Ok(()), work)
}

fn work(bench: Bench<'_>) -> Result<()> {
    let args = bench.args;
    let (layers, network) = match args.global_batch {
        Some(global_batch) => (tables::measure(&bench, global_batch)?, None),
        None => {
            let layers = curves::measure(&bench, &args.batches)?;
            let network =
                (args.workers > 1).then(|| network::measure(&bench, &layers, &args.batches)).transpose()?;
            (layers, network)
        }
    };
    bench.world.barrier().context("waiting for the other workers to finish")?;
    bench.world.close()?;
    if bench.process.rank > 0 {
        return Ok(());
    }
    let (model, device) = (Some(args.task.model_name()), Some(device_name(bench.process.device)));
    let profile = BurstProfile { model, device, network, layers };
    put(&args.json, (serde_json::to_string_pretty(&profile)? + "\n").as_bytes())?;
    bench.output.say(&format!("wrote {}", args.json.display()));
    Ok(())
}

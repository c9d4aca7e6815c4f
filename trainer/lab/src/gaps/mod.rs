//! `gaps`: measures the throughput of background work in the gaps of burst-parallel training, and its cost.
//!
//! Worker processes, each pinned to a core, run these configurations in turns:
//!
//! - the plan without background work
//! - the plan with background jobs in its gaps
//! - data parallelism without background work
//! - one rank without background work
//! - background jobs without the foreground
//!
//! Turns alternate, so that other activity on the machine affects all configurations.
//!
//! - `args`, `plans`: the arguments and the compared plans
//! - `rank`: the turns of one rank
//! - `figures`, `page`: the results

mod args;
mod page;
mod plans;
mod rank;
mod results;

use anyhow::{Context, Result, ensure};
use tch::Device;

pub use args::GapsArgs;
pub use rank::{Configuration, RankBackground, RankMeasurements, Turn};
pub use results::Figures;

use crate::burst::BurstPlan;
use crate::dataset::DataSet;
use crate::processes::{self, Process};
use evenstep_report::output::put;
use evenstep_trainer::launch::LaunchOutcome;
use evenstep_trainer::progress::Output;

/// Starts the workers, or runs as one of them; rank 0 writes the results.
///
/// # Errors
/// Fails if the plan cannot be run, a rank fails, a file cannot be written, or background work changed the
/// parameters.
pub fn run(args: &GapsArgs) -> Result<LaunchOutcome> {
    args.task.check()?;
    let data = args.task.dataset();
    let plan = args.plan(&args.task.network(&data, Device::Cpu))?;
    let work = |process| work(args, &plan, &process, &data);
    processes::run((&args.processes, &args.task), plan.gpus, "gaps", || Ok(()), work)
}

fn work(args: &GapsArgs, plan: &BurstPlan, process: &Process, data: &DataSet) -> Result<()> {
    let own = rank::run(args, plan, process, data)?;
    process.publish("told", &serde_json::to_vec(&own)?)?;
    if process.rank > 0 {
        return Ok(());
    }
    let told = |rank| -> Result<RankMeasurements> {
        serde_json::from_slice(&process.published("told", rank)?)
            .with_context(|| format!("reading the measurements of rank {rank}"))
    };
    write_results(args, &(0..plan.gpus).map(told).collect::<Result<Vec<_>>>()?)
}

fn write_results(args: &GapsArgs, told: &[RankMeasurements]) -> Result<()> {
    let figures = Figures::of(told, args.background.slow_down_limit);
    Output::new("gaps").say(&figures.to_summary());
    if let Some(path) = &args.json {
        let all = serde_json::json!({"figures": figures, "ranks": told});
        put(path, serde_json::to_string_pretty(&all)?.as_bytes())?;
    }
    if let Some(path) = &args.html {
        put(path, page::page(args, told, &figures).to_html().as_bytes())?;
    }
    ensure!(
        figures.unchanged,
        "the final parameters differ between the plan with and without background work"
    );
    Ok(())
}

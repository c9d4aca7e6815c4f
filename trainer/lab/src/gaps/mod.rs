//! What background work makes of the gaps of a burst-parallel training, and what it costs: measured.
//!
//! Real processes, each pinned to a core, take turns: the plan alone, the plan with background jobs in its gaps, data parallelism alone, one rank
//! alone, background jobs alone. Turns alternate, so that whatever else the machine does meets all of them.
//!
//! - `args`, `plans`: what is compared
//! - `rank`: one rank's turns
//! - `figures`, `page`: what came of them

mod args;
mod figures;
mod page;
mod plans;
mod rank;

use anyhow::{Context, Result, ensure};
use tch::Device;

pub use args::GapsArgs;
pub use figures::Figures;
pub use rank::{Arm, Beside, Told, Turn};

use crate::burst::Plan;
use crate::dataset::DataSet;
use crate::processes::{self, Process};
use evenstep_report::output::put;
use evenstep_trainer::launch::Ended;
use evenstep_trainer::progress::Output;

/// Begins the workers, or takes part as one; rank 0 tells what came of it.
///
/// # Errors
/// A plan that cannot be run here, a rank that failed, a file that cannot be written.
pub fn run(args: &GapsArgs) -> Result<Ended> {
    args.task.check()?;
    let data = args.task.dataset()?;
    let plan = args.plan(&args.task.network(&data, Device::Cpu))?;
    let work = |process| work(args, &plan, &process, &data);
    processes::run((&args.processes, &args.task), plan.gpus, "gaps", || Ok(()), work)
}

fn work(args: &GapsArgs, plan: &Plan, process: &Process, data: &DataSet) -> Result<()> {
    let own = rank::run(args, plan, process, data)?;
    process.publish("told", &serde_json::to_vec(&own)?)?;
    if process.rank > 0 {
        return Ok(());
    }
    let told = |rank| -> Result<Told> {
        serde_json::from_slice(&process.published("told", rank)?)
            .with_context(|| format!("what rank {rank} told"))
    };
    conclude(args, &(0..plan.gpus).map(told).collect::<Result<Vec<_>>>()?)
}

fn conclude(args: &GapsArgs, told: &[Told]) -> Result<()> {
    let figures = Figures::of(told, args.background.slow_down_limit);
    Output::new("gaps").say(&figures.in_words());
    if let Some(path) = &args.json {
        let all = serde_json::json!({"figures": figures, "ranks": told});
        put(path, serde_json::to_string_pretty(&all)?.as_bytes())?;
    }
    if let Some(path) = &args.report {
        put(path, page::page(args, told, &figures).to_html().as_bytes())?;
    }
    ensure!(figures.unchanged, "the parameters with background work differ from those without");
    Ok(())
}

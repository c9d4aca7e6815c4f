//! The arguments of `gaps`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::plans;
use crate::background::BackgroundArgs;
use crate::burst::BurstPlan;
use crate::network::Network;
use crate::processes::ProcessArgs;
use crate::task::TaskArgs;

/// Arguments of `gaps`.
#[derive(Debug, Clone, Args)]
pub struct GapsArgs {
    /// File with a burst-parallel plan from `evenstep-predictor plan --json` [default: the first and the
    /// last layer on all workers, the other layers on one]
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Number of worker processes (without --plan)
    #[arg(long, default_value_t = 2, conflicts_with = "plan", value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub workers: u32,
    /// Samples per iteration (without --plan)
    #[arg(long, default_value_t = 256, conflicts_with = "plan", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub global_batch: u64,
    /// Number of rounds; every configuration takes one turn per round
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=200))]
    pub rounds: u64,
    /// The background job.
    #[command(flatten)]
    pub background: BackgroundArgs,
    /// File for a page with charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// File for the results and the measurements of each rank, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The worker processes.
    #[command(flatten)]
    pub processes: ProcessArgs,
    /// The foreground training.
    #[command(flatten)]
    pub task: TaskArgs,
}

impl GapsArgs {
    /// Returns the plan whose gaps are filled.
    ///
    /// # Errors
    /// Fails if the plan cannot be read or is for another model, or if the global batch is smaller than
    /// the number of workers.
    pub fn plan(&self, model: &Network) -> Result<BurstPlan> {
        let plan = match &self.plan {
            Some(path) => BurstPlan::read(path)?,
            None => plans::burst(model, self.global_batch, self.workers as usize)?,
        };
        plan.check(model.layers(), plan.gpus)?;
        Ok(plan)
    }
}

//! `gaps`

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::plans;
use crate::background::BackgroundArgs;
use crate::burst::Plan;
use crate::network::Network;
use crate::processes::ProcessArgs;
use crate::task::TaskArgs;

/// `gaps`
#[derive(Debug, Clone, Args)]
pub struct GapsArgs {
    /// A burst-parallel plan, as `evenstep-predictor plan --json` wrote it [default: the first and the last layer on all workers,
    /// those between on one]
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Without a plan: how many workers, each a process of its own
    #[arg(long, default_value_t = 2, conflicts_with = "plan", value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub workers: u32,
    /// Without a plan: samples per iteration
    #[arg(long, default_value_t = 256, conflicts_with = "plan", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub global_batch: u64,
    /// Rounds; in each one all arms take their turns
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=200))]
    pub rounds: u64,
    /// Iterations of a turn
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=50))]
    pub block: u64,
    /// What runs in the gaps.
    #[command(flatten)]
    pub background: BackgroundArgs,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write the figures, and what each rank told, to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The workers.
    #[command(flatten)]
    pub processes: ProcessArgs,
    /// The task of the foreground.
    #[command(flatten)]
    pub task: TaskArgs,
}

impl GapsArgs {
    /// The plan whose gaps are filled.
    ///
    /// # Errors
    /// It cannot be read, or is for another model; a batch without a sample for each worker.
    pub fn plan(&self, model: &Network) -> Result<Plan> {
        let plan = match &self.plan {
            Some(path) => Plan::read(path)?,
            None => plans::burst(model, self.global_batch, self.workers as usize)?,
        };
        plan.check(model.layers(), plan.gpus)?;
        Ok(plan)
    }
}

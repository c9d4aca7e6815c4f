//! Arguments of `profile`.

use std::path::PathBuf;

use clap::Args;
use evenstep_trainer::plan::GLOBAL_BATCH_MAX;

use crate::processes::ProcessArgs;
use crate::task::TaskArgs;

/// Arguments of `profile`.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Local batches to measure, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128,256", conflicts_with = "global_batch",
        value_parser = clap::value_parser!(u64).range(1..=GLOBAL_BATCH_MAX))]
    pub batches: Vec<u64>,
    /// Measure tables by GPU count for this global batch instead; use this if workers slow each other
    /// down
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=GLOBAL_BATCH_MAX))]
    pub global_batch: Option<u64>,
    /// Number of worker processes; with two or more, the network between them is measured too
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), env = "EVENSTEP_WORKERS")]
    pub workers: u32,
    /// File for the profile, as JSON
    #[arg(long)]
    pub json: PathBuf,
    /// The worker processes.
    #[command(flatten)]
    pub processes: ProcessArgs,
    /// The network, its data set and the optimizer step.
    #[command(flatten)]
    pub task: TaskArgs,
}

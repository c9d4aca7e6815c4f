//! `gaps`, and the processes of its ranks.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

use crate::background::BackgroundArgs;
use crate::host_port::HostPort;

/// `gaps`
#[derive(Debug, Clone, Args)]
pub struct GapsArgs {
    /// A core for each rank [default: the first two that this process may use]
    #[arg(long, value_delimiter = ',', env = "EVENSTEP_PIN")]
    pub pin: Vec<usize>,
    /// A burst-parallel plan for as many GPUs as there are cores, as `evenstep-predictor plan --json` writes it [default: the first
    /// and the last layer on all ranks, those between on rank 0]
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Widths of the hidden layers of the foreground's mlp
    #[arg(long, value_delimiter = ',', default_value = "1024,1024,1024", value_parser = clap::value_parser!(i64).range(1..=65_536))]
    pub hidden: Vec<i64>,
    /// Samples per iteration of the foreground, without a plan
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=16_384))]
    pub global_batch: u64,
    /// Rounds; in each one all arms take their turns
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=200))]
    pub rounds: u64,
    /// Iterations of a turn
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=50))]
    pub block: u64,
    /// Decides the networks, the tasks and the order of samples
    #[arg(long, default_value_t = 1, env = "EVENSTEP_SEED")]
    pub seed: u64,
    /// What runs in the gaps.
    #[command(flatten)]
    pub background: BackgroundArgs,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write the figures, and what each rank told, to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// A rank that stalls for longer is an error on all others
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout_s: u64,
    /// This process is that rank
    #[arg(long, hide = true, requires = "store")]
    pub rank: Option<usize>,
    /// Where the store is
    #[arg(long, hide = true)]
    pub store: Option<HostPort>,
}

impl GapsArgs {
    /// The core of each rank, out of those that this process may use.
    ///
    /// # Errors
    /// There are fewer than two, or some are not ours.
    pub fn cores(&self, ours: &[usize]) -> Result<Vec<usize>> {
        let cores = match self.pin.as_slice() {
            [] => ours.iter().copied().take(2).collect(),
            named => named.to_vec(),
        };
        ensure!(cores.len() >= 2, "--pin {cores:?}: must name at least two cores, one for each rank");
        let foreign = cores.iter().find(|core| !ours.contains(core));
        ensure!(foreign.is_none(), "--pin {cores:?}: this process may run on the cores {ours:?}");
        Ok(cores)
    }
}

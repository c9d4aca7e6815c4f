//! The arguments of `launch` and `join`.

use std::path::PathBuf;

use clap::Args;
use evenstep_trainer::collective::HostPort;
use evenstep_trainer::training::{InvalidArgs, LaunchOptions, Options};

use crate::background::BackgroundArgs;
use crate::load::LoadKind;
use crate::record::is_table;
use crate::task::{NetworkArgs, TaskArgs};

/// Arguments of `launch`.
#[derive(Debug, Args)]
pub struct LaunchArgs {
    /// Options of the launcher.
    #[command(flatten)]
    pub launch: LaunchOptions,
    /// Run an independent competing load on each worker's core, like other tenants of a machine; pins one worker to
    /// each core. At most three threads per core are busy
    #[arg(long, value_name = "LOAD", num_args = 0..=1, default_missing_value = "regimes", conflicts_with = "vary_pace")]
    pub contend: Option<LoadKind>,
    /// The model and the training options.
    #[command(flatten)]
    pub train: TrainArgs,
}

/// Arguments of `join`.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// Rank of this worker, from 0
    #[arg(long)]
    pub rank: usize,
    /// Number of workers in the run
    #[arg(long)]
    pub workers: usize,
    /// Address of the store: host:port
    #[arg(long)]
    pub store: HostPort,
    /// Address of this machine that the other workers can reach
    #[arg(long, default_value = "127.0.0.1", env = "EVENSTEP_INTERFACE")]
    pub interface: String,
    /// The model and the training options.
    #[command(flatten)]
    pub train: TrainArgs,
}

/// The model and the training options.
#[derive(Debug, Clone, Args)]
pub struct TrainArgs {
    /// The training options.
    #[command(flatten)]
    pub options: Options,
    /// The network and its data set.
    #[command(flatten)]
    pub network: NetworkArgs,
    /// The background job.
    #[command(flatten)]
    pub background: BackgroundArgs,
    /// Relative speeds imposed on the workers, comma-separated: each computes real gradients, then waits
    #[arg(long, value_delimiter = ',')]
    pub pace: Option<Vec<f64>>,
    /// Time per sample at pace 1, in milliseconds
    #[arg(long, default_value_t = 1.0)]
    pub pace_unit_ms: f64,
    /// Impose speeds that change over time: divide each worker's pace (1 without --pace) by 1 + n, for n
    /// busy threads of a simulated load `regimes`, see --contend
    #[arg(long)]
    pub vary_pace: bool,
    /// File for the record of the run: JSON lines, one per iteration, for `report`. If its name ends in
    /// .csv: a table with one row per worker and iteration, for `evenstep-predictor backtest --id worker`
    #[arg(long)]
    pub record: Option<PathBuf>,
    /// Folder for sample logs: one file per worker with the epoch and index of every computed sample
    #[arg(long)]
    pub sample_log: Option<PathBuf>,
}

impl TrainArgs {
    /// Returns the imposed pace of a worker, if any.
    ///
    /// # Errors
    /// Fails if `--pace` has no entry for this rank.
    pub fn pace_of(&self, rank: usize) -> Result<Option<f64>, InvalidArgs> {
        let Some(paces) = &self.pace else { return Ok(self.vary_pace.then_some(1.0)) };
        let unnamed =
            || InvalidArgs(format!("--pace lists {} speeds: no entry for --rank {rank}", paces.len()));
        paces.get(rank).copied().map(Some).ok_or_else(unnamed)
    }

    /// Returns a message with the first violated rule for imposed speeds and the offending values.
    fn pace_error(&self, world_size: usize) -> Option<String> {
        let finite_positive = |value: f64| value.is_finite() && value > 0.0;
        if !finite_positive(self.pace_unit_ms) || self.pace_unit_ms > 60_000.0 {
            return Some(format!("--pace-unit-ms {}: must be above 0 and at most 60000", self.pace_unit_ms));
        }
        let paces = self.pace.as_ref()?;
        if paces.len() != world_size {
            return Some(format!(
                "--pace lists {} speeds: must list one for each of {world_size} workers",
                paces.len()
            ));
        }
        let wrong = paces.iter().find(|&&pace| !finite_positive(pace) || pace < 1e-3);
        wrong.map(|pace| format!("--pace {pace}: must be a finite number of at least 0.001"))
    }

    /// Checks that the options are consistent for this number of workers.
    ///
    /// # Errors
    /// Returns the first violated rule with the offending values.
    pub fn check(&self, world_size: usize) -> Result<(), InvalidArgs> {
        let options = &self.options;
        options.check(world_size)?;
        let wrong = if let Some(wrong) = self.pace_error(world_size) {
            wrong
        } else if self.background.background.is_some()
            && !options.policy.iter().any(|policy| policy.requests_allocations())
        {
            format!(
                "--background with --policy {:?}: only the predictor allocates time for background work; \
                                 use a policy that requests allocations",
                options.policy
            )
        } else if options.elastic && self.record.as_deref().is_some_and(is_table) {
            "--elastic with a --record that ends in .csv: a backtest trace requires fixed workers; use JSON lines"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(InvalidArgs(wrong))
    }

    /// Returns the network, its data set and the options of the optimizer step.
    pub fn task(&self) -> TaskArgs {
        TaskArgs { network: self.network.clone(), step: self.options.step.clone() }
    }
}

#[cfg(test)]
pub(super) mod tests;

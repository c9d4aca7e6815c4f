//! The arguments of `launch` and `join`.

use std::path::PathBuf;

use clap::Args;
use evenstep_trainer::collective::HostPort;
use evenstep_trainer::training::{InvalidArgs, LaunchOptions, Options};

use crate::background::BackgroundArgs;
use crate::load::{LoadKind, clock_seconds};
use crate::record::is_table;
use crate::task::{NetworkArgs, TaskArgs};

/// `launch`
#[derive(Debug, Args)]
pub struct LaunchArgs {
    /// The workers.
    #[command(flatten)]
    pub launch: LaunchOptions,
    /// Load each worker's core by itself, in a way of its own; pins one worker to each core
    #[arg(long, value_name = "LOAD", num_args = 0..=1, default_missing_value = "regimes", conflicts_with = "sway")]
    pub contend: Option<LoadKind>,
    /// What is trained, and how.
    #[command(flatten)]
    pub train: TrainArgs,
}

/// `join`
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// This worker's position, from 0
    #[arg(long)]
    pub rank: usize,
    /// How many workers take part
    #[arg(long)]
    pub world_size: usize,
    /// Where the store is: host:port
    #[arg(long)]
    pub store: HostPort,
    /// This machine's address that the other workers can reach
    #[arg(long, default_value = "127.0.0.1", env = "EVENSTEP_INTERFACE")]
    pub interface: String,
    /// Pin this worker to a core
    #[arg(long)]
    pub core: Option<usize>,
    /// Say in the record that the machine was loaded on purpose, and how
    #[arg(long, hide = true)]
    pub contended: Option<LoadKind>,
    /// When the load, real or imposed, began: in seconds on the machine's monotonic clock
    #[arg(long, hide = true, value_parser = clock_seconds)]
    pub loaded_since: Option<f64>,
    /// What is trained, and how.
    #[command(flatten)]
    pub train: TrainArgs,
}

/// What is trained, and how.
#[derive(Debug, Clone, Args)]
pub struct TrainArgs {
    /// How it trains.
    #[command(flatten)]
    pub options: Options,
    /// The network and its data.
    #[command(flatten)]
    pub network: NetworkArgs,
    /// What is trained beside it.
    #[command(flatten)]
    pub background: BackgroundArgs,
    /// Impose these relative speeds on the workers: real gradients, then a wait
    #[arg(long, value_delimiter = ',')]
    pub pace: Option<Vec<f64>>,
    /// Time of one sample at pace 1
    #[arg(long, default_value_t = 1.0)]
    pub pace_unit_ms: f64,
    /// Impose speeds that change: each worker's pace (1 without --pace) is divided by 1 + n, as beside n busy threads that come
    /// and go by one of the laws of `contend`
    #[arg(long, value_name = "LOAD", num_args = 0..=1, default_missing_value = "regimes")]
    pub sway: Option<LoadKind>,
    /// Write what happened to this file: JSON lines, one for each iteration, that `report` draws up; or, where its name
    /// ends in .csv, a table with a row for each worker and iteration, for `evenstep-predictor backtest --id worker`
    #[arg(long)]
    pub record: Option<PathBuf>,
    /// Each worker writes the epoch and index of every sample it computed to a file in this folder
    #[arg(long)]
    pub sample_log: Option<PathBuf>,
    /// Each worker writes when it computed, claimed and waited to a file in this folder, for `report --timeline`
    #[arg(long, value_name = "FOLDER")]
    pub timeline: Option<PathBuf>,
    /// With --timeline: every so many iterations are told
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub timeline_every: u64,
}

impl TrainArgs {
    /// The imposed pace of a worker, if any.
    ///
    /// # Errors
    /// Paces are named, and none for this rank.
    pub fn pace_of(&self, rank: usize) -> Result<Option<f64>, InvalidArgs> {
        let Some(paces) = &self.pace else { return Ok(self.sway.map(|_| 1.0)) };
        let unnamed =
            || InvalidArgs(format!("--pace names {} speeds, and none for --rank {rank}", paces.len()));
        paces.get(rank).copied().map(Some).ok_or_else(unnamed)
    }

    /// The rule for imposed speeds that is broken, with the values.
    fn wrong_pace(&self, world_size: usize) -> Option<String> {
        let finite_positive = |value: f64| value.is_finite() && value > 0.0;
        if !finite_positive(self.pace_unit_ms) || self.pace_unit_ms > 60_000.0 {
            return Some(format!("--pace-unit-ms {} must be above 0 and at most 60000", self.pace_unit_ms));
        }
        let paces = self.pace.as_ref()?;
        if paces.len() != world_size {
            return Some(format!("--pace names {} speeds, but there are {world_size} workers", paces.len()));
        }
        let wrong = paces.iter().find(|&&pace| !finite_positive(pace) || pace < 1e-3);
        wrong.map(|pace| format!("--pace {pace}: must be a finite number of at least 0.001"))
    }

    /// Checks the rules between values for this number of workers.
    ///
    /// # Errors
    /// The first rule that is broken, with the values.
    pub fn check(&self, world_size: usize) -> Result<(), InvalidArgs> {
        let options = &self.options;
        options.check(world_size)?;
        let wrong = if let Some(wrong) = self.wrong_pace(world_size) {
            wrong
        } else if self.background.background.is_some() && !options.policy.iter().any(|policy| policy.asks()) {
            format!(
                "--background with --policy {:?}: only the predictor says what an iteration bears",
                options.policy
            )
        } else if options.elastic && self.record.as_deref().is_some_and(is_table) {
            "--elastic with a --record that ends in .csv: a trace for backtests needs workers that stay"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(InvalidArgs(wrong))
    }

    /// The task.
    pub fn task(&self) -> TaskArgs {
        TaskArgs { network: self.network.clone(), step: self.options.step.clone() }
    }
}

#[cfg(test)]
pub(super) mod tests;

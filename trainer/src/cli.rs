//! The command line, and the rules that its values must keep together.

mod task;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use evenstep_client::Servers;
use evenstep_protocol::{DEFAULT_SERVER, Hedge, JobId};
use serde::{Deserialize, Serialize};

use crate::background::BackgroundArgs;
use crate::contend::clock_seconds;
use crate::hedge::HedgeArgs;
use crate::host_port::HostPort;
use crate::load::LoadKind;
use crate::optimizer::MomentumForm;
use crate::plan::GLOBAL_BATCH_MAX;
use crate::record::is_table;
use crate::rule::RuleArgs;

pub use task::{DeviceChoice, Dtype, ModelKind, TaskArgs};

/// `launch`
#[derive(Debug, Args)]
pub struct LaunchArgs {
    /// How many workers, each a process of its own
    #[arg(long, env = "EVENSTEP_WORKERS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: u32,
    /// Pin worker r to the r-th of these cores
    #[arg(long, value_delimiter = ',', env = "EVENSTEP_PIN")]
    pub pin: Option<Vec<usize>>,
    /// Load each worker's core by itself, in a way of its own; pins one worker to each core
    #[arg(long, value_name = "LOAD", num_args = 0..=1, default_missing_value = "regimes", conflicts_with = "sway")]
    pub contend: Option<LoadKind>,
    /// With --elastic: a worker that dies is started again, so many times in the whole run
    #[arg(long, default_value_t = 10, requires = "elastic", env = "EVENSTEP_MAX_RESTARTS")]
    pub max_restarts: u32,
    /// Answer /metrics for Prometheus here, such as 127.0.0.1:7120; port 0 takes a free one, which is said [default: nowhere]
    #[arg(long, value_name = "ADDRESS", env = "EVENSTEP_TRAINER_METRICS_LISTEN")]
    pub metrics_listen: Option<SocketAddr>,
    /// Send metrics to this collector over OTLP (HTTP), such as http://127.0.0.1:4318
    #[arg(long, value_name = "URL", env = "EVENSTEP_OTLP")]
    pub otlp: Option<String>,
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
    /// How often the launcher started this worker before
    #[arg(long, hide = true)]
    pub life: Option<u32>,
    /// Tell of each iteration on standard input, which is a socket of the launcher's
    #[arg(long, hide = true)]
    pub tells: bool,
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

/// `contend`
#[derive(Debug, Args)]
pub struct ContendArgs {
    /// The core to load
    #[arg(long)]
    pub core: usize,
    /// How the load changes over time
    #[arg(long, value_enum, default_value_t = LoadKind::Regimes)]
    pub load: LoadKind,
    /// Decides when and how much
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// When the load began, in seconds on the machine's monotonic clock [default: now]
    #[arg(long, hide = true, value_parser = clock_seconds)]
    pub since: Option<f64>,
    /// Confirms that the load ends when standard input closes: give it a pipe, not /dev/null
    #[arg(long, required = true)]
    pub until_stdin_closes: bool,
}

/// What is trained, and how.
#[derive(Debug, Clone, Args)]
pub struct TrainArgs {
    /// How iterations are shared out; several take turns, each training a replica of its own
    #[arg(long, value_delimiter = ',', default_value = "evenstep", env = "EVENSTEP_POLICY")]
    pub policy: Vec<Policy>,
    /// With several policies: iterations that one runs before the next takes its turn
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub block: u64,
    /// The predictor; several over one store, separated by commas: one that answers is asked
    #[arg(long, value_name = "URL,..", default_value = DEFAULT_SERVER, env = "EVENSTEP_SERVER")]
    pub server: Servers,
    /// The job id: one run, one id [default: made from the time]
    #[arg(long, env = "EVENSTEP_JOB")]
    pub job: Option<JobId>,
    /// Worker ids are PREFIX/RANK [default: the host's name]
    #[arg(long, env = "EVENSTEP_WORKER_ID")]
    pub worker_id: Option<String>,
    /// When to ask: at the boundary with fresh drivers, or ahead, off the critical path with drivers one iteration old
    #[arg(long, value_enum, default_value_t = AskMode::Ahead, env = "EVENSTEP_ASK")]
    pub ask: AskMode,
    /// The longest wait for an answer at the boundary
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub ask_timeout_ms: u64,
    /// The task.
    #[command(flatten)]
    pub task: TaskArgs,
    /// Samples per iteration over all workers; with --per-worker-batch the number that --lr was chosen for [default: 512, or
    /// the batch per worker times the workers that the run begins with]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=GLOBAL_BATCH_MAX), env = "EVENSTEP_GLOBAL_BATCH")]
    pub global_batch: Option<u64>,
    /// The global batch grows and shrinks with the run: so many samples for each worker, shared out as ever
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=GLOBAL_BATCH_MAX), env = "EVENSTEP_PER_WORKER_BATCH")]
    pub per_worker_batch: Option<u64>,
    /// How the learning rate follows.
    #[command(flatten)]
    pub rule: RuleArgs,
    /// What is left to a shared tail, and how it is claimed.
    #[command(flatten)]
    pub hedge: HedgeArgs,
    /// What is trained beside it.
    #[command(flatten)]
    pub background: BackgroundArgs,
    /// Samples in one forward and backward
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    pub micro_batch: u64,
    /// Local batches are multiples of this
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub quantum: u64,
    /// No worker gets more samples than this
    #[arg(long)]
    pub max_local_batch: Option<u64>,
    /// Iterations of each policy
    #[arg(long, conflicts_with = "epochs", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// Epochs of each policy [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: Option<u64>,
    /// Where the learning rate stands; both take the same steps
    #[arg(long, value_enum, default_value_t = MomentumForm::Outside)]
    pub momentum_form: MomentumForm,
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
    /// Compare the gradient with that of one process: on the first iteration and every so many after it
    #[arg(long, value_name = "EVERY", num_args = 0..=1, default_missing_value = "50", value_parser = clap::value_parser!(u64).range(1..))]
    pub verify_gradient: Option<u64>,
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
    /// Where checkpoints are
    #[arg(long)]
    pub checkpoint_dir: Option<PathBuf>,
    /// Write a checkpoint every so many iterations, and one when told to stop
    #[arg(long, requires = "checkpoint_dir", value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoint_every: Option<u64>,
    /// Go on from the latest checkpoint
    #[arg(long, requires = "checkpoint_dir")]
    pub resume: bool,
    /// Live through workers that come and go: the others regroup and go on from the last finished iteration
    #[arg(long, env = "EVENSTEP_ELASTIC")]
    pub elastic: bool,
    /// With --elastic: with fewer workers the training pauses until one is back
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), env = "EVENSTEP_MIN_WORKERS")]
    pub min_workers: u32,
    /// With --elastic: regrouping, a pause included, that takes longer ends the run
    #[arg(long, default_value_t = 300, requires = "elastic", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub pause_timeout_s: u64,
    /// A worker that stalls for longer is an error on all others
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout_s: u64,
}

/// How iterations are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The same share for every worker.
    Even,
    /// What the predictor says, with every sample given to a worker: by forecast only.
    Base,
    /// What the predictor says.
    Evenstep,
}

impl Policy {
    /// Whether the predictor is asked.
    pub fn asks(self) -> bool {
        self != Self::Even
    }

    /// Whether part of a batch may be left to a shared tail.
    pub fn hedge(self) -> Hedge {
        if self == Self::Evenstep { Hedge::Auto } else { Hedge::Off }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Even => "even",
            Self::Base => "base",
            Self::Evenstep => "evenstep",
        })
    }
}

/// When rank 0 asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskMode {
    /// Between iterations, with drivers just read.
    Boundary,
    /// While the iteration before computes.
    Ahead,
}

/// Values that do not go together; the message names them and the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidArgs(pub String);

impl TrainArgs {
    /// Checks the rules between values for this number of workers.
    ///
    /// # Errors
    /// The first rule that is broken, with the values.
    pub fn check(&self, world_size: usize) -> Result<(), InvalidArgs> {
        let mut policies = self.policy.clone();
        policies.sort();
        policies.dedup();
        let wrong = if policies.len() != self.policy.len() {
            format!("--policy {:?}: each may come once", self.policy)
        } else if let Some(wrong) = self.wrong_batch(world_size as u64) {
            wrong
        } else if let Some(wrong) = self.rule.wrong() {
            wrong
        } else if let Some(wrong) = self.wrong_tail() {
            wrong
        } else if let Some(wrong) = self.task.wrong() {
            wrong
        } else if let Some(wrong) = self.wrong_pace(world_size) {
            wrong
        } else if self.background.background.is_some() && !self.policy.iter().any(|policy| policy.asks()) {
            format!(
                "--background with --policy {:?}: only the predictor says what an iteration bears",
                self.policy
            )
        } else {
            return self.check_elastic(world_size);
        };
        Err(InvalidArgs(wrong))
    }

    fn check_elastic(&self, world_size: usize) -> Result<(), InvalidArgs> {
        let fewest = u64::from(self.min_workers);
        let room = self.max_local_batch.map(|cap| (cap / self.quantum * self.quantum).saturating_mul(fewest));
        let wrong = if !self.elastic {
            if self.min_workers == 1 {
                return Ok(());
            }
            format!("--min-workers {fewest}: needs --elastic, without which every worker must live")
        } else if self.policy.len() > 1 {
            format!(
                "--elastic with --policy {:?}: policies take turns only among workers that stay",
                self.policy
            )
        } else if fewest > world_size as u64 {
            format!("--min-workers {fewest}: the run begins with {world_size} workers")
        } else if self.record.as_deref().is_some_and(is_table) {
            "--elastic with a --record that ends in .csv: a trace for backtests needs workers that stay"
                .to_owned()
        } else if self.per_worker_batch.is_none()
            && room.is_some_and(|room| room < self.whole_batch(world_size))
        {
            format!(
                "--min-workers {fewest}: so few, with at most {} samples each, cannot hold --global-batch {}",
                self.max_local_batch.unwrap_or(0),
                self.whole_batch(world_size)
            )
        } else {
            return Ok(());
        };
        Err(InvalidArgs(wrong))
    }
}

/// The arguments of `launch` with two workers and these arguments.
#[cfg(test)]
pub(crate) fn parse_launch(extra: &[&str]) -> clap::error::Result<(LaunchArgs, clap::ArgMatches)> {
    use clap::FromArgMatches;
    let arguments = ["launch", "--workers=2"].iter().chain(extra);
    let matches = LaunchArgs::augment_args(clap::Command::new("launch")).try_get_matches_from(arguments)?;
    Ok((LaunchArgs::from_arg_matches(&matches)?, matches))
}

#[cfg(test)]
mod tests;

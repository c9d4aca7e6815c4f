//! Options of a run. They are clap arguments: flatten them into the command line of your own program, or set
//! the fields.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Command, FromArgMatches};
use evenstep_client::Servers;
use evenstep_protocol::{BackgroundSettings, DEFAULT_SERVER, JobId};

use super::learning_rate::RuleChoice;
use crate::model::DeviceChoice;
use crate::plan::{GLOBAL_BATCH_MAX, Policy};

/// Options for starting the workers of one machine.
#[derive(Debug, Clone, Args)]
pub struct LaunchOptions {
    /// Number of worker processes
    #[arg(long, env = "EVENSTEP_WORKERS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: u32,
    /// Maximum number of worker restarts in the whole run (requires --elastic)
    #[arg(long, default_value_t = 10, requires = "elastic", env = "EVENSTEP_MAX_RESTARTS")]
    pub max_restarts: u32,
}

/// Options of the optimizer step, and its starting point.
#[derive(Debug, Clone, Args)]
pub struct StepOptions {
    /// Learning rate
    #[arg(long, default_value_t = 0.05)]
    pub lr: f64,
    /// Seed of the initial parameters, the generated task and the order of samples
    #[arg(long, default_value_t = 1, env = "EVENSTEP_SEED")]
    pub seed: u64,
    /// Device for computing
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto, env = "EVENSTEP_DEVICE")]
    pub device: DeviceChoice,
}

/// Options of the training.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Policy that splits iterations over workers; several run alternately, each with its own replica
    #[arg(long, value_delimiter = ',', default_value = "evenstep", env = "EVENSTEP_POLICY")]
    pub policy: Vec<Policy>,
    /// Predictor URLs, comma-separated; requests go to the first that responds
    #[arg(long, value_name = "URL,..", default_value = DEFAULT_SERVER, env = "EVENSTEP_SERVER")]
    pub server: Servers,
    /// Job id, unique per run [default: made from the time]
    #[arg(long, env = "EVENSTEP_JOB")]
    pub job: Option<JobId>,
    /// Prefix of worker ids, PREFIX/RANK [default: the host name]
    #[arg(long, env = "EVENSTEP_WORKER_ID")]
    pub worker_id: Option<String>,
    /// The optimizer step.
    #[command(flatten)]
    pub step: StepOptions,
    /// Samples per iteration over all workers; with --per-worker-batch the batch that --lr was chosen for
    /// [default: 512, or the batch per worker times the initial number of workers]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=GLOBAL_BATCH_MAX), env = "EVENSTEP_GLOBAL_BATCH")]
    pub global_batch: Option<u64>,
    /// Samples per worker; the global batch follows the number of workers
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=GLOBAL_BATCH_MAX), env = "EVENSTEP_PER_WORKER_BATCH")]
    pub per_worker_batch: Option<u64>,
    /// How the learning rate follows a changing global batch; see --per-worker-batch
    #[arg(long, value_enum, default_value_t = RuleChoice::DynamicSgd, env = "EVENSTEP_RULE")]
    pub rule: RuleChoice,
    /// With --policy even: share of each iteration that forms the tail, above 0 and at most 1
    #[arg(long, value_name = "SHARE")]
    pub tail: Option<f64>,
    /// Limit for background work that the predictor plans for, if the run has background work.
    #[arg(skip)]
    pub background: Option<BackgroundSettings>,
    /// Samples per forward and backward pass
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    pub micro_batch: u64,
    /// Local batches are multiples of this number of samples
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub quantum: u64,
    /// Iterations of each policy
    #[arg(long, conflicts_with = "epochs", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// Epochs of each policy [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: Option<u64>,
    /// Compare the gradient with the one-process gradient in the first and every EVERY-th iteration
    #[arg(long, value_name = "EVERY", num_args = 0..=1, default_missing_value = "50", value_parser = clap::value_parser!(u64).range(1..))]
    pub verify_gradient: Option<u64>,
    /// Directory of checkpoints
    #[arg(long)]
    pub checkpoint_dir: Option<PathBuf>,
    /// Iterations between checkpoints; a stop signal also writes one
    #[arg(long, requires = "checkpoint_dir", value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoint_every: Option<u64>,
    /// Resume from the latest checkpoint
    #[arg(long, requires = "checkpoint_dir")]
    pub resume: bool,
    /// Tolerate workers joining and leaving; the others continue from the last finished iteration
    #[arg(long, env = "EVENSTEP_ELASTIC")]
    pub elastic: bool,
    /// With --elastic: minimum number of workers; with fewer the training pauses
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), env = "EVENSTEP_MIN_WORKERS")]
    pub min_workers: u32,
    /// Maximum time that a worker may stall before the others fail, in s
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout_s: u64,
}

impl LaunchOptions {
    /// Returns options for `workers` processes, with 10 restarts if the run is elastic.
    pub fn new(workers: u32) -> Self {
        Self { workers, max_restarts: 10 }
    }
}

impl Options {
    /// Parses flags such as `--global-batch=64`. Options without a flag come from `EVENSTEP_*` variables or
    /// keep their defaults.
    ///
    /// # Errors
    /// A flag or a variable is unknown or has an invalid value.
    pub fn parse(flags: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> clap::error::Result<Self> {
        let command = Self::augment_args(Command::new("options").no_binary_name(true));
        Self::from_arg_matches(&command.try_get_matches_from(flags)?)
    }
}

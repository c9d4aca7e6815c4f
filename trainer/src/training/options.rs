//! The options of a run. They are clap arguments: flatten them into the command line of your own program, or set the fields.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Command, FromArgMatches};
use evenstep_client::Servers;
use evenstep_protocol::{BackgroundSettings, DEFAULT_SERVER, JobId};

use super::hedge::HedgeOptions;
use super::learning_rate::LearningRateOptions;
use crate::model::{DeviceChoice, MomentumForm};
use crate::plan::{AskMode, GLOBAL_BATCH_MAX, Policy};

/// How the workers of one machine are started.
#[derive(Debug, Clone, Args)]
pub struct LaunchOptions {
    /// How many workers, each a process of its own
    #[arg(long, env = "EVENSTEP_WORKERS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: u32,
    /// Pin worker r to the r-th of these cores
    #[arg(long, value_delimiter = ',', env = "EVENSTEP_PIN")]
    pub pin: Option<Vec<usize>>,
    /// With --elastic: a worker that dies is started again, so many times in the whole run
    #[arg(long, default_value_t = 10, requires = "elastic", env = "EVENSTEP_MAX_RESTARTS")]
    pub max_restarts: u32,
    /// Answer /metrics for Prometheus here, such as 127.0.0.1:7120; port 0 takes a free one, which is said [default: nowhere]
    #[arg(long, value_name = "ADDRESS", env = "EVENSTEP_TRAINER_METRICS_LISTEN")]
    pub metrics_listen: Option<SocketAddr>,
    /// Send metrics to this collector over OTLP (HTTP), such as http://127.0.0.1:4318
    #[arg(long, value_name = "URL", env = "EVENSTEP_OTLP")]
    pub otlp: Option<String>,
}

/// The optimizer step, and what it starts from.
#[derive(Debug, Clone, Args)]
pub struct StepOptions {
    /// Learning rate
    #[arg(long, default_value_t = 0.05)]
    pub lr: f64,
    /// Momentum
    #[arg(long, default_value_t = 0.9)]
    pub momentum: f64,
    /// Decides the network's first parameters, the generated task and the order of samples
    #[arg(long, default_value_t = 1, env = "EVENSTEP_SEED")]
    pub seed: u64,
    /// Where to compute
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto, env = "EVENSTEP_DEVICE")]
    pub device: DeviceChoice,
}

/// How a run trains.
#[derive(Debug, Clone, Args)]
pub struct Options {
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
    /// The optimizer step.
    #[command(flatten)]
    pub step: StepOptions,
    /// Samples per iteration over all workers; with --per-worker-batch the number that --lr was chosen for [default: 512, or
    /// the batch per worker times the workers that the run begins with]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=GLOBAL_BATCH_MAX), env = "EVENSTEP_GLOBAL_BATCH")]
    pub global_batch: Option<u64>,
    /// The global batch grows and shrinks with the run: so many samples for each worker, shared out as ever
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=GLOBAL_BATCH_MAX), env = "EVENSTEP_PER_WORKER_BATCH")]
    pub per_worker_batch: Option<u64>,
    /// How the learning rate follows.
    #[command(flatten)]
    pub rule: LearningRateOptions,
    /// What is left to a shared tail, and how it is claimed.
    #[command(flatten)]
    pub hedge: HedgeOptions,
    /// The limit for background work that the predictor plans for, if there is background work.
    #[arg(skip)]
    pub background: Option<BackgroundSettings>,
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
    /// Compare the gradient with that of one process: on the first iteration and every so many after it
    #[arg(long, value_name = "EVERY", num_args = 0..=1, default_missing_value = "50", value_parser = clap::value_parser!(u64).range(1..))]
    pub verify_gradient: Option<u64>,
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

impl LaunchOptions {
    /// `workers` processes that are not pinned, with 10 restarts if the run is elastic, and no metrics.
    pub fn new(workers: u32) -> Self {
        Self { workers, pin: None, max_restarts: 10, metrics_listen: None, otlp: None }
    }
}

impl Options {
    /// Options from flags such as `--global-batch=64`. Those that are not named come from `EVENSTEP_*` variables or are
    /// defaults.
    ///
    /// # Errors
    /// A flag or a variable that is unknown or not valid.
    pub fn parse(flags: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> clap::error::Result<Self> {
        let command = Self::augment_args(Command::new("options").no_binary_name(true));
        Self::from_arg_matches(&command.try_get_matches_from(flags)?)
    }
}

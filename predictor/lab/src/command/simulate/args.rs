//! What a simulation is asked for.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{ArgGroup, Args as ClapArgs, ValueEnum};
use evenstep_core::forecast::Loss;
use evenstep_core::hedge::{ClaimCost, POOL_MAX};
use evenstep_core::plan::{MIN_GAIN, Objective};
use evenstep_report::output::{STANDARD, check_apart};
use evenstep_report::values::{between, not_negative, positive, share};

use super::help::{EXAMPLES, LONG_ABOUT};
use crate::command::GLOBAL_BATCH_MAX;
use crate::command::columns::{ColumnFlags, check_traces};
use crate::simulate::error::CELLS_MAX;
use crate::simulate::world::RecordedForm;
use crate::simulate::{PolicyName, Settings};

/// Samples of a step for each worker, where nothing else is asked for.
const BATCH_PER_WORKER: u64 = 64;
/// Iterations of a described cluster, where nothing else is asked for.
pub const CLUSTER_ITERATIONS: usize = 2000;

/// What a claim takes, and claims a second that a counter takes, where nothing else is asked for. On loopback
/// (`evenstep-trainer`'s example `claims`) a claim takes a fifth of it, and the rate is higher.
const CLAIM_COST_S: f64 = 0.0005;
const CLAIM_RATE: f64 = 50_000.0;

/// Workers times iterations up to which networks are fitted unless said otherwise: some seconds of fits.
const NETWORK_CELLS_MAX: usize = 100_000;

/// Flags of `simulate`.
#[derive(Debug, ClapArgs)]
#[command(
    about = "Would evenstep be worth it? Step times under several policies, on recorded workers or a described cluster",
    long_about = LONG_ABOUT,
    after_long_help = EXAMPLES,
    group = ArgGroup::new("world").args(["trace", "cluster"]).required(true),
)]
pub struct Args {
    /// Tables to read, one for each worker, or one of several workers (--id): comma, tab or blank separated; - is standard
    /// input
    #[arg(long, num_args = 1.., value_name = "FILE", help_heading = "Workers")]
    pub trace: Vec<PathBuf>,
    /// A cluster described in TOML: see the examples
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["workers", "target", "target_time", "batch", "time", "id", "drivers", "fixed_share", "saturation"],
        help_heading = "Workers"
    )]
    pub cluster: Option<PathBuf>,
    /// Make so many workers of the traces: copies are shifted in time, all around, by what the seed draws [default: one for
    /// each trace]
    #[arg(long, value_name = "N", value_parser = between(1, CELLS_MAX as u64), help_heading = "Workers")]
    pub workers: Option<u64>,
    /// Iterations to simulate [default: all that the shortest trace has; 2000 of a cluster]
    #[arg(long, value_name = "N", value_parser = between(2, CELLS_MAX as u64), help_heading = "Workers")]
    pub iterations: Option<u64>,
    /// Seed of shifts and of what happens in a cluster
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workers")]
    pub seed: u64,

    /// Which column is what.
    #[command(flatten)]
    pub columns: ColumnFlags,

    /// Part of a recorded worker's time, at its median batch, that any batch takes; 0: it is as fast at any batch
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = part, help_heading = "Batch curve of traces")]
    pub fixed_share: f64,
    /// Smaller batches take no less time than one of so many samples
    #[arg(long, value_name = "SAMPLES", default_value_t = 0, value_parser = between(0, GLOBAL_BATCH_MAX), help_heading = "Batch curve of traces")]
    pub saturation: u64,

    /// Samples of an iteration over all workers [default: 64 for each worker]
    #[arg(long, value_name = "SAMPLES", value_parser = between(1, GLOBAL_BATCH_MAX), help_heading = "Job")]
    pub global_batch: Option<u64>,
    /// Every share is a multiple of this, and at least this
    #[arg(long, value_name = "SAMPLES", default_value_t = 1, value_parser = between(1, GLOBAL_BATCH_MAX), help_heading = "Job")]
    pub quantum: u64,

    /// Policies to compare
    #[arg(
        long,
        value_name = "POLICY,..",
        value_delimiter = ',',
        value_parser = PolicyName::from_str,
        default_value = "even,static_proportional,last_value,ema,base,evenstep,oracle",
        help_heading = "Policies"
    )]
    pub policies: Vec<PolicyName>,
    /// Share of the iterations that does not count; static_proportional measures speeds in it
    #[arg(long, value_name = "SHARE", default_value_t = 0.4, value_parser = share, help_heading = "Policies")]
    pub warmup: f64,
    /// Factor of ema: how much the latest speed counts
    #[arg(long, value_name = "FACTOR", default_value_t = 0.3, value_parser = factor, help_heading = "Policies")]
    pub ema: f64,
    /// When shares are asked for: at the boundary of the iteration, or one iteration ahead, when the outcome of the one
    /// before is not known yet
    #[arg(long, value_enum, value_name = "WHEN", default_value = "boundary", help_heading = "Policies")]
    pub ask: Ask,
    /// evenstep holds its shares while others would shorten the step by less than this share [default: the service's]
    #[arg(long, value_name = "SHARE", value_parser = part, help_heading = "Policies")]
    pub min_gain: Option<f64>,
    /// What evenstep's plans minimise: the expected time of the slowest worker, or its time as if forecasts were certain
    #[arg(long, value_enum, value_name = "OBJECTIVE", default_value = "expected", help_heading = "Policies")]
    pub split: Split,
    /// What evenstep's mix is trained on: the error of the speed, or the step time it leads to [default: the service's]
    #[arg(long, value_enum, value_name = "LOSS", help_heading = "Policies")]
    pub mix: Option<Mix>,
    /// Seconds that a claim from evenstep's shared tail takes
    #[arg(long, value_name = "SECONDS", default_value_t = CLAIM_COST_S, value_parser = not_negative, help_heading = "Policies")]
    pub claim_cost: f64,
    /// Claims a second that one counter can take: more at once wait
    #[arg(long, value_name = "RATE", default_value_t = CLAIM_RATE, value_parser = positive, help_heading = "Policies")]
    pub claim_rate: f64,
    /// No chunk of evenstep's shared tail has fewer samples [default: the quantum]
    #[arg(long, value_name = "SAMPLES", value_parser = between(1, GLOBAL_BATCH_MAX), help_heading = "Policies")]
    pub min_chunk: Option<u64>,
    /// The most workers that claim from one counter: more make several pools, each with its own part of the tail
    #[arg(long, value_name = "N", default_value_t = POOL_MAX as u64, value_parser = between(2, CELLS_MAX as u64), help_heading = "Policies")]
    pub pool: u64,
    /// Whether evenstep fits networks on the way, which takes most of the time; auto: where workers times iterations are at
    /// most 100000
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", help_heading = "Policies")]
    pub networks: Networks,

    /// Print JSON instead of the table, or write it to a file beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Write a page with tables and charts that stands alone
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub report: Option<PathBuf>,
}

/// When shares are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Ask {
    /// When the iteration before has ended.
    Boundary,
    /// When it begins.
    Ahead,
}

/// What evenstep's plans minimise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Split {
    /// The expected maximum over the forecasts' recent errors.
    Expected,
    /// The maximum by the forecasts.
    Certain,
}

/// What evenstep's mix is trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mix {
    /// Squared error in log speed.
    Error,
    /// The log of the step time.
    Step,
}

/// Whether networks are fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Networks {
    /// Where that takes seconds.
    Auto,
    /// Always.
    Yes,
    /// Never: the other models are as in the service.
    No,
}

/// A share in [0, 1).
fn part(written: &str) -> Result<f64, String> {
    let part: Option<f64> = written.parse().ok();
    part.filter(|part| (0.0..1.0).contains(part)).ok_or_else(|| "must be a share from 0 to under 1".into())
}

/// A factor in (0, 1].
fn factor(written: &str) -> Result<f64, String> {
    let factor: Option<f64> = written.parse().ok();
    factor
        .filter(|factor| (f64::MIN_POSITIVE..=1.0).contains(factor))
        .ok_or_else(|| "must be over 0, and at most 1".into())
}

impl Args {
    /// Checks what clap cannot: flags that do not go together.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self) -> Result<(), String> {
        self.columns.choice(true).map_err(|error| error.to_string())?;
        check_traces(&self.trace)?;
        for (at, policy) in self.policies.iter().enumerate() {
            if self.policies[..at].contains(policy) {
                return Err(format!("--policies: {policy} is there twice"));
            }
        }
        let inputs: Vec<PathBuf> = self.trace.iter().chain(&self.cluster).cloned().collect();
        check_apart(&[&self.json, &self.report], &inputs)?;
        match &self.cluster {
            Some(path) if path == Path::new(STANDARD) => Err("--cluster: it is read from a file".into()),
            _ => Ok(()),
        }
    }

    /// The policies to compare.
    pub fn policies(&self) -> Vec<PolicyName> {
        self.policies.clone()
    }

    /// How recorded workers' time grows with the batch.
    pub fn recorded_form(&self) -> RecordedForm {
        RecordedForm { fixed_share: self.fixed_share, saturation: self.saturation }
    }

    /// Settings for so many workers and iterations.
    pub fn settings(&self, workers: usize, iterations: usize) -> Settings {
        let per_worker = BATCH_PER_WORKER.next_multiple_of(self.quantum);
        Settings {
            global_batch: self.global_batch.unwrap_or(per_worker * workers as u64),
            quantum: self.quantum,
            warmup: (self.warmup * iterations as f64) as usize,
            ema: self.ema,
            min_gain: self.min_gain.unwrap_or(MIN_GAIN),
            objective: match self.split {
                Split::Expected => Objective::ExpectedMaximum,
                Split::Certain => Objective::Maximum,
            },
            loss: match self.mix {
                None => Loss::default(),
                Some(Mix::Error) => Loss::SquaredError,
                Some(Mix::Step) => Loss::StepTime,
            },
            claim: ClaimCost {
                latency_s: self.claim_cost,
                busy_s: (1.0 / self.claim_rate).min(self.claim_cost),
            },
            min_chunk: self.min_chunk.unwrap_or(self.quantum).next_multiple_of(self.quantum),
            pool_max: usize::try_from(self.pool).unwrap_or(usize::MAX),
            ahead: self.ask == Ask::Ahead,
            networks: match self.networks {
                Networks::Auto => workers.saturating_mul(iterations) <= NETWORK_CELLS_MAX,
                Networks::Yes => true,
                Networks::No => false,
            },
        }
    }
}

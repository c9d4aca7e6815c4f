//! Command line of `simulate`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{ArgGroup, Args as ClapArgs, ValueEnum};
use evenstep_report::output::{STANDARD_STREAM, check_distinct};
use evenstep_report::values::{between, share};

use super::help::{EXAMPLES, LONG_ABOUT};
use crate::command::GLOBAL_BATCH_MAX;
use crate::command::columns::{ColumnFlags, check_traces};
use crate::simulate::error::CELLS_MAX;
use crate::simulate::world::RecordedForm;
use crate::simulate::{PolicyName, Settings};

/// Samples per worker in the default global batch.
const BATCH_PER_WORKER: u64 = 64;
/// Iterations of a described cluster by default.
pub const CLUSTER_ITERATIONS: usize = 2000;

/// Largest number of workers times iterations for which networks are fitted by default. Fits then take a few
/// seconds.
const NETWORK_CELLS_MAX: usize = 100_000;

/// Flags of `simulate`.
#[derive(Debug, ClapArgs)]
#[command(
    about = "Compare step times of allocation policies on recorded workers or a described cluster",
    long_about = LONG_ABOUT,
    after_long_help = EXAMPLES,
    group = ArgGroup::new("world").args(["trace", "cluster"]).required(true),
)]
pub struct Args {
    /// Trace files, one per worker or one of several workers (--id), columns separated by commas, semicolons, tabs or
    /// spaces; - reads standard input
    #[arg(long, num_args = 1.., value_name = "FILE", help_heading = "Workers")]
    pub trace: Vec<PathBuf>,
    /// Cluster description in TOML; see the examples
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["workers", "target", "target_time", "batch", "time", "id", "drivers", "fixed_share"],
        help_heading = "Workers"
    )]
    pub cluster: Option<PathBuf>,
    /// Number of workers to make from the traces; copies are shifted cyclically in time by random offsets
    /// [default: one per trace]
    #[arg(long, value_name = "N", value_parser = between(1, CELLS_MAX as u64), help_heading = "Workers")]
    pub workers: Option<u64>,
    /// Number of iterations to simulate [default: all iterations of which every worker has a row; 2000 for a cluster]
    #[arg(long, value_name = "N", value_parser = between(2, CELLS_MAX as u64), help_heading = "Workers")]
    pub iterations: Option<u64>,
    /// Random seed of the time shifts and of the cluster
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workers")]
    pub seed: u64,

    /// Column flags.
    #[command(flatten)]
    pub columns: ColumnFlags,

    /// Fixed part of a recorded worker's time at its median batch; at 0 the speed does not depend on the
    /// batch
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = part, help_heading = "Batch curve of traces")]
    pub fixed_share: f64,

    /// Samples per iteration over all workers [default: 64 per worker]
    #[arg(long, value_name = "SAMPLES", value_parser = between(1, GLOBAL_BATCH_MAX), help_heading = "Job")]
    pub global_batch: Option<u64>,
    /// Quantum in samples: every local batch is a positive multiple of it
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
    /// Whether evenstep fits networks during the run, which takes most of the time; auto: if workers times
    /// iterations are at most 100000
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", help_heading = "Policies")]
    pub networks: Networks,

    /// Print JSON instead of the table; with FILE, print the table and write JSON to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Write a self-contained HTML report
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub report: Option<PathBuf>,
}

/// Whether networks are fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Networks {
    /// If the fits take only seconds.
    Auto,
    /// Always.
    Yes,
    /// Never. The other models are the same as in the service.
    No,
}

/// Parses a share in [0, 1).
fn part(written: &str) -> Result<f64, String> {
    let part: Option<f64> = written.parse().ok();
    part.filter(|part| (0.0..1.0).contains(part)).ok_or_else(|| "must be at least 0 and less than 1".into())
}

impl Args {
    /// Checks combinations of flags that clap cannot check.
    ///
    /// # Errors
    /// A message that names the flag and the rule.
    pub fn check(&self) -> Result<(), String> {
        self.columns.choice().map_err(|error| error.to_string())?;
        check_traces(&self.trace)?;
        for (at, policy) in self.policies.iter().enumerate() {
            if self.policies[..at].contains(policy) {
                return Err(format!("--policies: {policy} is given twice"));
            }
        }
        let inputs: Vec<PathBuf> = self.trace.iter().chain(&self.cluster).cloned().collect();
        check_distinct(&[&self.json, &self.report], &inputs)?;
        match &self.cluster {
            Some(path) if path == Path::new(STANDARD_STREAM) => {
                Err("--cluster: cannot be read from standard \
                input; name a file"
                    .into())
            }
            _ => Ok(()),
        }
    }

    /// Returns the policies to compare.
    pub fn policies(&self) -> Vec<PolicyName> {
        self.policies.clone()
    }

    /// Returns how the time of recorded workers depends on the batch.
    pub fn curve_assumption(&self) -> RecordedForm {
        RecordedForm { fixed_share: self.fixed_share, usual_batch: None }
    }

    /// Returns the settings for a number of workers and iterations.
    pub fn settings(&self, workers: usize, iterations: usize) -> Settings {
        let per_worker = BATCH_PER_WORKER.next_multiple_of(self.quantum);
        Settings {
            global_batch: self.global_batch.unwrap_or(per_worker * workers as u64),
            quantum: self.quantum,
            warmup: (self.warmup * iterations as f64) as usize,
            networks: match self.networks {
                Networks::Auto => workers.saturating_mul(iterations) <= NETWORK_CELLS_MAX,
                Networks::Yes => true,
                Networks::No => false,
            },
        }
    }
}

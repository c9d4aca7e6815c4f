//! Command-line flags of `plan`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use evenstep_protocol::{BurstAllReduce, BurstNetwork, BurstProfile};
use evenstep_report::output::check_distinct;
use evenstep_report::values::{between, not_negative, positive};

use super::help::{EXAMPLES, LONG_ABOUT};
use crate::request::BurstRequest;

/// Flags of `plan`.
#[derive(Debug, ClapArgs)]
#[command(
    about = "Plan the number of GPUs for each layer from a measured profile (burst parallelism)",
    long_about = LONG_ABOUT,
    after_long_help = EXAMPLES,
)]
pub struct Args {
    /// Layer profile in JSON; - reads standard input
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    pub profile: PathBuf,
    /// Global batch: samples per iteration over all GPUs
    #[arg(long, value_name = "SAMPLES", value_parser = between(1, 1 << 31), help_heading = "Model")]
    pub global_batch: u64,

    /// Number of GPUs
    #[arg(long, value_name = "N", value_parser = between(1, 1 << 16), required_unless_present = "speeds", help_heading = "GPUs")]
    pub gpus: Option<u64>,
    /// Speed of each GPU, relative to the profiled GPU [default: all 1]
    #[arg(long, value_name = "SPEED,..", value_delimiter = ',', value_parser = positive, help_heading = "GPUs")]
    pub speeds: Option<Vec<f64>>,
    /// Allowed GPU counts per layer [default: the powers of two]
    #[arg(long, value_name = "N,..", value_delimiter = ',', help_heading = "GPUs")]
    pub counts: Option<Vec<u64>>,
    /// Bandwidth of one GPU in each direction, in bytes per second [default: from the profile]
    #[arg(long, value_name = "BYTES", value_parser = positive, help_heading = "GPUs")]
    pub bandwidth: Option<f64>,
    /// Latency of one message, in microseconds [default: from the profile]
    #[arg(long, value_name = "US", value_parser = not_negative, help_heading = "GPUs")]
    pub latency_us: Option<f64>,
    /// All-reduce algorithm for gradients [default: from the profile, or ring]
    #[arg(long, value_enum, value_name = "HOW", help_heading = "GPUs")]
    pub all_reduce: Option<AllReduce>,

    /// Amplification limit: maximum GPU time of a layer, as a multiple of its GPU time on one GPU [default:
    /// none]
    #[arg(long, value_name = "TIMES", value_parser = limit, help_heading = "Rules")]
    pub amplification: Option<f64>,
    /// Exempt layers that take less than this on one GPU, in microseconds [default: 300]
    #[arg(long, value_name = "US", value_parser = not_negative, help_heading = "Rules")]
    pub exempt_below_us: Option<f64>,
    /// Memory cap per GPU for parameters and activations, in bytes [default: none]
    #[arg(long, value_name = "BYTES", help_heading = "Rules")]
    pub memory_bytes: Option<u64>,
    /// Bytes per parameter with gradient and optimizer state: SGD 8, with momentum 12, Adam 16 [default: 16]
    #[arg(long, value_name = "BYTES", value_parser = not_negative, help_heading = "Rules")]
    pub bytes_per_parameter: Option<f64>,

    /// Print JSON instead of the table; with FILE, print the table and write JSON to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Write a self-contained HTML report with timeline, tables and charts
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub report: Option<PathBuf>,
}

/// All-reduce algorithms for the gradient sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AllReduce {
    /// Ring all-reduce
    Ring,
    /// Double-binary-tree all-reduce
    Tree,
}

/// Parses an amplification limit, at least 1.
fn limit(written: &str) -> Result<f64, String> {
    let limit: Option<f64> = written.parse().ok();
    limit.filter(|limit| limit.is_finite() && *limit >= 1.0).ok_or_else(|| "must be 1 or more".into())
}

impl Args {
    /// Checks combinations of flags, which clap cannot check.
    ///
    /// # Errors
    /// A message that names the conflicting flags.
    pub fn check(&self) -> Result<(), String> {
        if let (Some(gpus), Some(speeds)) = (self.gpus, &self.speeds)
            && gpus != speeds.len() as u64
        {
            return Err(format!("--speeds: {} for --gpus {gpus}; give one speed per GPU", speeds.len()));
        }
        check_distinct(&[&self.json, &self.report], std::slice::from_ref(&self.profile))
    }

    /// Returns the request with this profile and these flags.
    pub fn request(&self, profile: BurstProfile) -> BurstRequest {
        let all_reduce = |all_reduce| match all_reduce {
            AllReduce::Ring => BurstAllReduce::Ring,
            AllReduce::Tree => BurstAllReduce::Tree,
        };
        BurstRequest {
            profile,
            global_batch: self.global_batch,
            gpus: self.gpus,
            speeds: self.speeds.clone(),
            counts: self.counts.clone(),
            amplification: self.amplification,
            exempt_below_us: self.exempt_below_us,
            memory_bytes: self.memory_bytes,
            bytes_per_parameter: self.bytes_per_parameter,
            network: Some(BurstNetwork {
                bandwidth_bytes_per_s: self.bandwidth,
                latency_us: self.latency_us,
                all_reduce: self.all_reduce.map(all_reduce),
            }),
            job_id: None,
        }
    }
}

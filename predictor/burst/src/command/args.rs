//! What a plan is asked for.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use evenstep_protocol::{BurstAllReduce, BurstNetwork, BurstProfile};
use evenstep_report::output::check_apart;
use evenstep_report::values::{between, not_negative, positive};

use super::help::{EXAMPLES, LONG_ABOUT};
use crate::request::BurstRequest;

/// Flags of `plan`.
#[derive(Debug, ClapArgs)]
#[command(
    about = "How many GPUs should each layer get? Burst-parallel plans from measured layers",
    long_about = LONG_ABOUT,
    after_long_help = EXAMPLES,
)]
pub struct Args {
    /// What layers cost, in JSON; - is standard input
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    pub profile: PathBuf,
    /// Samples of an iteration over all GPUs
    #[arg(long, value_name = "SAMPLES", value_parser = between(1, 1 << 31), help_heading = "Model")]
    pub global_batch: u64,

    /// How many GPUs there are
    #[arg(long, value_name = "N", value_parser = between(1, 1 << 16), required_unless_present = "speeds", help_heading = "GPUs")]
    pub gpus: Option<u64>,
    /// A speed for each GPU, relative to the one that was profiled [default: all 1]
    #[arg(long, value_name = "SPEED,..", value_delimiter = ',', value_parser = positive, help_heading = "GPUs")]
    pub speeds: Option<Vec<f64>>,
    /// GPU counts that a layer may have [default: the powers of two]
    #[arg(long, value_name = "N,..", value_delimiter = ',', help_heading = "GPUs")]
    pub counts: Option<Vec<u64>>,
    /// Bytes per second of one GPU in each direction [default: the profile's]
    #[arg(long, value_name = "BYTES", value_parser = positive, help_heading = "GPUs")]
    pub bandwidth: Option<f64>,
    /// Microseconds that a message takes [default: the profile's]
    #[arg(long, value_name = "US", value_parser = not_negative, help_heading = "GPUs")]
    pub latency_us: Option<f64>,
    /// How gradients are summed [default: the profile's, else ring]
    #[arg(long, value_enum, value_name = "HOW", help_heading = "GPUs")]
    pub all_reduce: Option<AllReduce>,

    /// How many times its GPU time on one GPU a layer may cost [default: any]
    #[arg(long, value_name = "TIMES", value_parser = limit, help_heading = "Rules")]
    pub amplification: Option<f64>,
    /// Layers that take less than this on one GPU are free of that limit [default: 300]
    #[arg(long, value_name = "US", value_parser = not_negative, help_heading = "Rules")]
    pub exempt_below_us: Option<f64>,
    /// The most that a GPU may hold of parameters and activations [default: anything]
    #[arg(long, value_name = "BYTES", help_heading = "Rules")]
    pub memory_bytes: Option<u64>,
    /// Bytes of a parameter with its gradient and the optimizer's state: 8 for SGD, 12 with momentum, 16 for Adam [default: 16]
    #[arg(long, value_name = "BYTES", value_parser = not_negative, help_heading = "Rules")]
    pub bytes_per_parameter: Option<f64>,

    /// Print JSON instead of the table, or write it to a file beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Write a page with the plan's timeline, tables and charts that stands alone
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub report: Option<PathBuf>,
}

/// How gradients are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AllReduce {
    /// Around a ring, in parts
    Ring,
    /// Up and down two trees
    Tree,
}

/// An amplification limit.
fn limit(written: &str) -> Result<f64, String> {
    let limit: Option<f64> = written.parse().ok();
    limit.filter(|limit| limit.is_finite() && *limit >= 1.0).ok_or_else(|| "must be 1 or more".into())
}

impl Args {
    /// Checks what clap cannot: flags that do not go together.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self) -> Result<(), String> {
        if let (Some(gpus), Some(speeds)) = (self.gpus, &self.speeds)
            && gpus != speeds.len() as u64
        {
            return Err(format!("--speeds: {} for --gpus {gpus}: each GPU must have one", speeds.len()));
        }
        check_apart(&[&self.json, &self.report], std::slice::from_ref(&self.profile))
    }

    /// The request that these flags are.
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

//! Command line of `backtest`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgGroup, Args as ClapArgs};
use evenstep_protocol::JobId;
use evenstep_report::output::check_distinct;
use evenstep_report::values::{between, share};

use super::help::{self, EXAMPLES, LONG_ABOUT};
use crate::backtest::ModelName;
use crate::backtest::models::DEFAULT_MODELS;
use crate::command::GLOBAL_BATCH_MAX;
use crate::command::columns::{ColumnFlags, check_traces};

/// Flags of `backtest`.
#[derive(Debug, ClapArgs)]
#[command(
    about = "Evaluate forecasters on recorded traces: error, prediction interval and resulting step time",
    long_about = LONG_ABOUT,
    after_long_help = EXAMPLES,
    group = ArgGroup::new("source").args(["trace", "job"]).required(true),
)]
pub struct Args {
    /// Trace files with columns separated by commas, semicolons, tabs or spaces; - reads standard input; without a header,
    /// columns are numbered from 0
    #[arg(long, num_args = 1.., value_name = "FILE", help_heading = "Traces")]
    pub trace: Vec<PathBuf>,
    /// Job whose reports are read from the store
    #[arg(long, value_name = "ID", help_heading = "Traces")]
    pub job: Option<JobId>,
    /// Store of the job, opened read-only
    #[arg(
        long,
        env = "EVENSTEP_STORE",
        hide_env_values = true,
        value_name = "URL",
        default_value = "sqlite://evenstep.db",
        help_heading = "Traces"
    )]
    pub store: String,

    /// Column flags.
    #[command(flatten)]
    pub columns: ColumnFlags,

    /// Models to compare.
    #[arg(
        long,
        help = help::models(),
        value_name = "MODEL,..",
        value_delimiter = ',',
        value_parser = ModelName::from_str,
        help_heading = "Models"
    )]
    pub models: Vec<ModelName>,

    /// Share of each series used only for learning
    #[arg(long, value_name = "SHARE", default_value_t = 0.4, value_parser = share, help_heading = "Rolling origin")]
    pub warmup: f64,
    /// Global batch for which step times are computed, in samples [default: 64 per worker]
    #[arg(long, value_name = "SAMPLES", value_parser = between(1, GLOBAL_BATCH_MAX), help_heading = "Rolling origin")]
    pub global_batch: Option<u64>,

    /// Print JSON instead of the table; with FILE, print the table and write JSON to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Write every forecast as CSV: unique_id, ds, y, model, y_hat, lo, hi
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub csv: Option<PathBuf>,
    /// Write a self-contained HTML report
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub report: Option<PathBuf>,
}

impl Args {
    /// Checks combinations of flags that clap cannot check.
    ///
    /// # Errors
    /// A message that names the flag and the rule.
    pub fn check(&self) -> Result<(), String> {
        self.columns.choice().map_err(|error| error.to_string())?;
        check_traces(&self.trace)?;
        let models = self.models();
        for (at, model) in models.iter().enumerate() {
            if models[..at].contains(model) {
                return Err(format!("--models: {model} is given twice"));
            }
        }
        check_distinct(&[&self.json, &self.csv, &self.report], &self.trace)
    }

    /// The models to compare.
    pub fn models(&self) -> Vec<ModelName> {
        match self.models.is_empty() {
            true => DEFAULT_MODELS.iter().filter_map(|name| name.parse().ok()).collect(),
            false => self.models.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::trace::columns::Drivers;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Result<Args, String> {
        let words = ["backtest", "--trace", "a.csv"].into_iter().chain(line.split_whitespace());
        let args = Line::try_parse_from(words).map_err(|error| error.to_string())?.args;
        args.check().map(|()| args)
    }

    fn said(line: &str, named: &str) {
        let error = args(line).unwrap_err();
        assert!(error.contains(named), "{line:?} must name {named:?}: {error}");
    }

    #[test]
    fn conflicting_options_are_named() {
        said("--models last,mux", "mux");
        said("--models last,last", "twice");
        said("--models narx", "no model \"narx\"");
        said("--warmup 1", "between 0 and 1");
        said("--warmup NaN", "between 0 and 1");
        said("--drivers a,truth_b", "truth_b");
        said("--batch truth_b", "truth_b");
        said("--target y --target-time z", "--target");
        said("--job x", "--job");
        said("--trace a.csv", "given twice");
        said("--json a.csv", "overwrite");
        said("--json - --csv -", "two outputs");
        said("--json o --csv o", "two outputs");
    }

    #[test]
    fn drivers_may_be_absent() {
        let drivers = |line: &str| args(line).unwrap().columns.choice().unwrap().drivers;
        assert_eq!(drivers("--drivers="), Drivers::Named(Vec::new()));
        assert_eq!(drivers(""), Drivers::Others);
    }
}

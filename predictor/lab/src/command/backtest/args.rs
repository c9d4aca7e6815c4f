//! Command line of `backtest`.

use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgGroup, Args as ClapArgs, ValueEnum};
use evenstep_protocol::JobId;
use evenstep_report::output::check_distinct;
use evenstep_report::values::{between, share};

use super::help::{self, EXAMPLES, LONG_ABOUT};
use super::values::{LAGS_MAX, Rows, rows};
use crate::backtest::models::{DEFAULT_MODELS, NETWORK_NAME};
use crate::backtest::recipes::RecipeName;
use crate::backtest::{ModelName, Tuning};
use crate::batch::Lags;
use crate::command::columns::{ColumnFlags, check_traces};
use crate::command::{COUNT_MAX, GLOBAL_BATCH_MAX};
use crate::trace::columns::{ColumnRoles, TruthColumn};

/// Flags of `backtest`.
#[derive(Debug, ClapArgs)]
#[command(
    about = "Evaluate forecasters on recorded traces: error, prediction interval and resulting step time",
    long_about = LONG_ABOUT,
    after_long_help = EXAMPLES,
    group = ArgGroup::new("source").args(["trace", "job"]).required(true),
    group = ArgGroup::new("identification").args(["train", "test"]).multiple(true),
    mut_arg("id", |id| id.help(help::ID)),
    mut_arg("drivers", |drivers| drivers.help(help::DRIVERS)),
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
    /// Forecast horizon in rows: the forecast of row k is made at row k - N
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = between(1, COUNT_MAX), help_heading = "Models")]
    pub horizon: u64,

    /// Share of each series used only for learning
    #[arg(long, value_name = "SHARE", default_value_t = 0.4, value_parser = share, conflicts_with = "identification", help_heading = "Rolling origin")]
    pub warmup: f64,
    /// Global batch for which step times are computed, in samples [default: 64 per worker]
    #[arg(long, value_name = "SAMPLES", value_parser = between(1, GLOBAL_BATCH_MAX), conflicts_with = "identification", help_heading = "Rolling origin")]
    pub global_batch: Option<u64>,

    /// Rows to fit, numbered from 0, end exclusive [default: the rows before --test]
    #[arg(long, value_name = "A..B", value_parser = rows, conflicts_with_all = ["job", "target_time"], help_heading = "System identification")]
    pub train: Option<Rows>,
    /// Rows to predict, numbered from 0, end exclusive [default: the rows after --train]
    #[arg(long, value_name = "C..D", value_parser = rows, conflicts_with_all = ["job", "target_time"], help_heading = "System identification")]
    pub test: Option<Rows>,
    /// Number of target lags
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = between(0, LAGS_MAX), requires = "identification", help_heading = "System identification")]
    pub lags_y: u64,
    /// Number of lags of each driver
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = between(0, LAGS_MAX), requires = "identification", help_heading = "System identification")]
    pub lags_u: u64,
    /// Rows between consecutive lags
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = between(1, COUNT_MAX), requires = "identification", help_heading = "System identification")]
    pub lag_stride: u64,
    /// Random seed of the network
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "identification",
        help_heading = "System identification"
    )]
    pub seed: u64,
    /// Feed predictions back as lags of the target; rows before the test range keep their measured values
    #[arg(long, requires = "identification", help_heading = "System identification")]
    pub free_run: bool,
    /// Whether drivers of the row itself are inputs, in addition to their lags; auto: if they help on the
    /// last fifth of the training range
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        requires = "identification",
        help_heading = "System identification"
    )]
    pub current: Current,
    /// Rows at the start of the test range to predict but not count
    #[arg(
        long,
        value_name = "ROWS",
        default_value_t = 0,
        requires = "identification",
        help_heading = "System identification"
    )]
    pub skip: u64,

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

/// Whether drivers of the row itself are inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Current {
    /// If they reduce the error.
    Auto,
    /// Always.
    Yes,
    /// Never.
    No,
}

/// Default models of system identification.
const DEFAULT_RECIPES: [&str; 2] = ["last", "arx"];

impl Args {
    /// Returns whether the command runs system identification: one range is fitted, another predicted.
    pub fn is_identification(&self) -> bool {
        self.train.is_some() || self.test.is_some()
    }

    /// Checks combinations of flags that clap cannot check.
    ///
    /// # Errors
    /// A message that names the flag and the rule.
    pub fn check(&self) -> Result<(), String> {
        self.choice().map_err(|error| error.to_string())?;
        check_traces(&self.trace)?;
        let models = self.models();
        for (at, model) in models.iter().enumerate() {
            if models[..at].contains(model) {
                return Err(format!("--models: {model} is given twice"));
            }
            if self.is_identification() && model.recipe().is_none() && !model.is_last() {
                return Err(format!(
                    "--models: {model} is a streaming model; --train and --test accept last, arx, {NETWORK_NAME}"
                ));
            }
            if !self.is_identification() && model.recipe() == Some(RecipeName::Narx) {
                return Err(format!(
                    "--models: {model} alone is a model of --train and --test; mix contains it"
                ));
            }
        }
        if self.free_run && self.horizon > 1 {
            return Err("--free-run: predictions are fed back, so --horizon must be 1".into());
        }
        let no_inputs = matches!(self.choice(), Ok(choice) if choice.drivers.is_none())
            || (self.lags_u == 0 && self.current != Current::Yes);
        if self.lags_y == 0 && no_inputs {
            return Err("--lags-y 0: without lags of the target, models need drivers; set --drivers, \
                and --lags-u or --current yes"
                .into());
        }
        check_distinct(&[&self.json, &self.csv, &self.report], &self.trace)
    }

    /// The models to compare.
    pub fn models(&self) -> Vec<ModelName> {
        let defaults: &[&str] = if self.is_identification() { &DEFAULT_RECIPES } else { &DEFAULT_MODELS };
        match self.models.is_empty() {
            true => defaults.iter().filter_map(|name| name.parse().ok()).collect(),
            false => self.models.clone(),
        }
    }

    /// Returns the ranges to fit and to predict in a series of `rows` rows. If only one range is given, the
    /// training range defaults to the rows before the test range, and the test range to the rows after the
    /// training range.
    pub fn ranges(&self, rows: usize) -> (Range<usize>, Range<usize>) {
        let open = Rows { start: None, end: None };
        let (train, test) = (self.train.unwrap_or(open), self.test.unwrap_or(open));
        let before_test = if self.train.is_none() { test.start } else { None };
        let train_end = train.end.or(before_test).unwrap_or(rows);
        let after_train = if self.test.is_none() { train_end } else { 0 };
        (train.start.unwrap_or(0)..train_end, test.start.unwrap_or(after_train)..test.end.unwrap_or(rows))
    }

    /// Returns the lags of the regressors in system identification.
    pub fn lags(&self) -> Lags {
        Lags {
            y: self.lags_y as usize,
            u: self.lags_u as usize,
            current: self.current == Current::Yes,
            stride: self.lag_stride as usize,
            horizon: self.horizon as usize,
        }
    }

    /// Returns the settings of the models of system identification.
    pub fn tuning(&self) -> Tuning {
        Tuning { seed: self.seed, thorough: true }
    }

    /// Returns the roles of the columns.
    ///
    /// # Errors
    /// [`TruthColumn`] if a `truth_*` column would be an input.
    pub fn choice(&self) -> Result<ColumnRoles, TruthColumn> {
        self.columns.choice(!self.is_identification())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

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
    fn one_range_follows_from_the_other() {
        let ranges = |line: &str| args(line).unwrap().ranges(100);
        assert_eq!(ranges("--train 10..40 --test 60..70"), (10..40, 60..70));
        assert_eq!(ranges("--train ..40"), (0..40, 40..100));
        assert_eq!(ranges("--test 60.."), (0..60, 60..100));
        assert_eq!(ranges("--train 10.. --test ..5"), (10..100, 0..5));
    }

    #[test]
    fn conflicting_options_are_named() {
        said("--models last,mux", "mux");
        said("--models last,last", "twice");
        said("--train 0..9 --models mix", "accept last, arx, narx");
        said("--train 9..9", "empty");
        said("--train 9", "A..B");
        said("--train a..b", "A..B");
        said("--train 0..9 --warmup 0.3", "--warmup");
        said("--free-run", "--train");
        said("--train 0..9 --free-run --horizon 2", "--horizon");
        said("--train 0..9 --lags-y 0", "need drivers");
        said("--train 0..9 --drivers u --lags-y 0 --lags-u 0", "--current yes");
        said("--lags-y 0", "--train");
        said("--models narx", "mix contains it");
        said("--warmup 1", "between 0 and 1");
        said("--warmup NaN", "between 0 and 1");
        said("--horizon 0", "--horizon");
        said("--train 0..9 --lags-u 999", "999");
        said("--drivers a,truth_b", "truth_b");
        said("--drivers sign(truth_b)", "truth_b");
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
        assert!(args("--drivers=").unwrap().choice().unwrap().drivers.is_none());
        assert!(args("--train 0..9 --target x").unwrap().choice().unwrap().drivers.is_none());
        assert!(!args("").unwrap().choice().unwrap().drivers.is_none());
    }
}

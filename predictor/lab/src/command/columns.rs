//! Flags that assign roles to the columns of a table.

use std::path::PathBuf;

use clap::Args;

use crate::trace::columns::{ColumnRoles, Drivers, TruthColumn, check_input};

/// Column flags.
#[derive(Debug, Args)]
pub struct ColumnFlags {
    /// Column to forecast, in samples per second [default: speed]
    #[arg(long, value_name = "COLUMN", help_heading = "Columns")]
    pub target: Option<String>,
    /// Column with times; the forecast quantity is the batch divided by it [default: compute_time_s, if that column exists and
    /// speed does not, as in an exported job]
    #[arg(long, value_name = "COLUMN", conflicts_with = "target", help_heading = "Columns")]
    pub target_time: Option<String>,
    /// Column with the samples per iteration [default: batch or local_batch, the first that exists, otherwise 1 sample]
    #[arg(long, value_name = "COLUMN", help_heading = "Columns")]
    pub batch: Option<String>,
    /// Column that aligns workers: iterations (whole numbers), seconds, or dates such as 2026-03-29T01:59:30+01:00. Empty for
    /// the row number [default: iteration, iter or t_start, the first that exists, otherwise the row number]
    #[arg(long, value_name = "COLUMN", help_heading = "Columns")]
    pub time: Option<String>,
    /// Column with the worker of each row, in a table of several workers [default: worker, if the column
    /// exists]
    #[arg(long, value_name = "COLUMN", help_heading = "Columns")]
    pub id: Option<String>,
    /// Columns known before the row; empty for none [default: all other columns, except iteration, iter, t_start, iter_ms, speed, truth_* and unnamed ones; none of an exported job]
    #[arg(long, value_name = "COLUMN,..", value_delimiter = ',', help_heading = "Columns")]
    pub drivers: Option<Vec<String>>,
}

impl ColumnFlags {
    /// Returns the roles of the columns.
    ///
    /// # Errors
    /// [`TruthColumn`] if a `truth_*` column would be an input.
    pub fn choice(&self) -> Result<ColumnRoles, TruthColumn> {
        let inputs = self.drivers.iter().flatten().chain(&self.batch);
        inputs.map(|name| name.trim()).try_for_each(check_input)?;
        let named = |names: &Vec<String>| {
            names.iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
        };
        let drivers = self.drivers.as_ref().map_or(Drivers::Others, |names| Drivers::Named(named(names)));
        Ok(ColumnRoles {
            target: self.target.clone(),
            target_time: self.target_time.clone(),
            batch: self.batch.clone(),
            time: self.time.clone(),
            id: self.id.clone(),
            drivers,
        })
    }
}

/// Checks that no trace is given twice.
///
/// # Errors
/// A message that names the trace given twice.
pub fn check_traces(traces: &[PathBuf]) -> Result<(), String> {
    match traces.iter().enumerate().find(|(at, path)| traces[..*at].contains(path)) {
        Some((_, path)) => Err(format!("--trace {}: given twice", path.display())),
        None => Ok(()),
    }
}

//! Which column of a table is what, as flags.

use std::path::PathBuf;

use clap::Args;

use crate::trace::columns::{Choice, Driver, Drivers, Truth};

/// Flags for columns.
#[derive(Debug, Args)]
pub struct ColumnFlags {
    /// What is forecast: samples per second, or any quantity
    #[arg(long, value_name = "COLUMN", default_value = "speed", help_heading = "Columns")]
    pub target: String,
    /// The table holds times: what is forecast is the batch over this column
    #[arg(long, value_name = "COLUMN", conflicts_with = "target", help_heading = "Columns")]
    pub target_time: Option<String>,
    /// Samples of the iteration [default: batch, where there is such a column, else 1 sample]
    #[arg(long, value_name = "COLUMN", help_heading = "Columns")]
    pub batch: Option<String>,
    /// When a row came [default: t_start, where there is such a column, else the row's number]
    #[arg(long, value_name = "COLUMN", help_heading = "Columns")]
    pub time: Option<String>,
    /// The worker that a row belongs to, in a table of several [default: worker, where there is such a column]
    #[arg(long, value_name = "COLUMN", help_heading = "Columns")]
    pub id: Option<String>,
    /// Inputs known before the row: COLUMN or sign(COLUMN); empty for none [default: every other column, except iter,
    /// iter_ms, speed, truth_* and those without a name]
    #[arg(long, value_name = "COLUMN,..", value_delimiter = ',', help_heading = "Columns")]
    pub drivers: Option<Vec<String>>,
}

impl ColumnFlags {
    /// Which column is what. `speeds`: what is read are speeds of workers, whose drivers are all columns unless said.
    ///
    /// # Errors
    /// Where a column that nobody could have known is to be an input.
    pub fn choice(&self, speeds: bool) -> Result<Choice, Truth> {
        let named = |names: &[String]| {
            let names = names.iter().filter(|name| !name.is_empty());
            names.map(|name| Driver::new(name)).collect::<Result<_, _>>()
        };
        let drivers = match &self.drivers {
            Some(names) => Drivers::Named(named(names)?),
            None if speeds => Drivers::Others,
            None => Drivers::Named(Vec::new()),
        };
        if let Some(batch) = &self.batch {
            Driver::new(batch)?;
        }
        Ok(Choice {
            target: self.target.clone(),
            target_time: self.target_time.clone(),
            batch: self.batch.clone(),
            time: self.time.clone(),
            id: self.id.clone(),
            drivers,
            speeds,
        })
    }
}

/// Checks that no trace is given twice.
///
/// # Errors
/// Where one is, in words.
pub fn check_traces(traces: &[PathBuf]) -> Result<(), String> {
    match traces.iter().enumerate().find(|(at, path)| traces[..*at].contains(path)) {
        Some((_, path)) => Err(format!("--trace {}: given twice", path.display())),
        None => Ok(()),
    }
}

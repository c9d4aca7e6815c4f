//! `report`: summarizes records of runs as a table, a page and JSON.
//!
//! `DEFINITIONS` has the meaning of all values. It is printed under the table and on the page.

mod charts;
mod compared;
mod decisions;
mod definitions;
mod forecasts;
mod page;
mod results;
mod run;
mod table;

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use evenstep_report::output::put;

use crate::report::results::Results;
use crate::report::run::Run;

pub use run::ReportError;

/// Arguments of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Records written by `launch --record` or `join --record`
    #[arg(required = true, value_name = "RECORD")]
    pub records: Vec<PathBuf>,
    /// File for a self-contained page with charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// File for the results, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Reads the records, prints the table, and writes the requested files.
///
/// # Errors
/// Fails if a record cannot be read or violates a rule, or if a file cannot be written.
pub fn run(args: &ReportArgs) -> Result<()> {
    let runs: Vec<Run> = args.records.iter().map(|path| Run::read(path)).collect::<Result<_, _>>()?;
    let results = Results::of(&runs);
    if let Some(path) = &args.html {
        put(path, page::report(&runs, &results).to_html().as_bytes())?;
    }
    if let Some(path) = &args.json {
        let mut json = serde_json::to_vec_pretty(&results).context("writing the results as JSON")?;
        json.push(b'\n');
        put(path, &json)?;
    }
    io::stdout().lock().write_all(table::text(&runs, &results).as_bytes()).context("writing the table")
}

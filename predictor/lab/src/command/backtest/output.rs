//! Where results go: standard output, files.

use evenstep_report::output::{self, asked, put, put_figures};

use super::args::Args;
use super::results::Results;
use super::{forecasts, page, text};

/// Checks before any work that files can be where they should be.
///
/// # Errors
/// Where a folder is not there.
pub fn check(args: &Args) -> anyhow::Result<()> {
    output::check([&args.json, &args.csv, &args.report].into_iter().flatten())
}

/// Writes what was asked for; the table goes to standard output where nothing else does.
///
/// # Errors
/// Where something cannot be written.
pub fn write(results: &Results, args: &Args) -> anyhow::Result<()> {
    put_figures(&text::table(results), results, args.json.as_ref(), &[&args.csv, &args.report])?;
    if let Some(path) = &args.csv {
        put(path, &forecasts::csv(results)?)?;
    }
    if let Some(path) = &args.report {
        put(path, page::report(results, &asked()).to_html().as_bytes())?;
    }
    Ok(())
}

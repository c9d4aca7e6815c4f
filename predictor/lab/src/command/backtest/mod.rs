//! The command `backtest`: reads recorded traces and evaluates forecasters.
//!
//! - [`args`], `help`: flags
//! - `rolling`: rolling-origin backtests over all traces, in parallel
//! - `steps`: step times of allocations by the forecasts
//! - [`results`]: the results as JSON
//! - `text`, `forecasts`, `charts`, `page`: the results as text, CSV and HTML

pub mod args;

mod help;

mod rolling;

mod steps;

pub mod results;

mod text;

mod forecasts;

mod page;

mod charts;

use std::time::Instant;

use evenstep_report::output::{self, put, write_page, write_results};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub use args::Args;

use results::Results;

use crate::trace::columns::Trace;
use crate::trace::{align_jobs, name_series, read_all, stored};

/// Runs a backtest and writes the requested outputs. The flags must pass [`Args::check`].
///
/// # Errors
/// If a trace cannot be used or an output cannot be written. No output is written then.
pub fn run(args: &Args) -> anyhow::Result<()> {
    output::check(&[&args.json, &args.csv, &args.report])?;
    let results = results(args)?;
    write_results(&text::table(&results), &results, &args.json, &[&args.csv, &args.report])?;
    if let Some(path) = &args.csv {
        put(path, &forecasts::csv(&results)?)?;
    }
    write_page(&args.report, |asked| page::report(&results, asked))
}

/// Reads the traces and evaluates all models.
fn results(args: &Args) -> anyhow::Result<Results> {
    let mut traces = match &args.job {
        Some(job_id) => vec![stored::read(&args.store, job_id)?],
        None => read_all(&args.trace, &args.columns.choice()?)?,
    };
    name_series(&mut traces);
    align_jobs(&mut traces)?;
    judge(&traces, args)
}

/// Evaluates all models and renders the results in every form. Writes nothing.
#[cfg(test)]
pub(super) fn rehearse(args: &Args) -> anyhow::Result<()> {
    let results = results(args)?;
    text::table(&results);
    serde_json::to_string(&results)?;
    forecasts::csv(&results)?;
    page::report(&results, "").to_html();
    Ok(())
}

fn judge(traces: &[Trace], args: &Args) -> anyhow::Result<Results> {
    let began = Instant::now();
    let clock = || began.elapsed().as_secs_f64();
    let units = rolling::units(traces, args);
    // Drawn only if standard error is a terminal.
    let bar = ProgressBar::with_draw_target(Some(units as u64), ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} models on traces, {eta} left")?);
    let done_one = || bar.inc(1);
    let results = rolling::run(traces, args, &clock, &done_one);
    bar.finish_and_clear();
    results
}

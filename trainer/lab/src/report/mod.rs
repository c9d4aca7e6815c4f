//! `evenstep-trainer report`: records of runs as a table, a page and JSON.
//!
//! What the figures mean stands in `DEFINITIONS`, under the table and on the page.

mod charts;
mod compared;
mod decisions;
mod forecasts;
mod page;
mod results;
mod run;
mod table;
mod timeline;

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use evenstep_report::Report;
use evenstep_report::output::put;

use crate::record::timeline as recorded;
use crate::report::results::Results;
use crate::report::run::Run;
use crate::report::timeline::Steps;
use evenstep_trainer::Policy;

pub use run::ReportError;

/// `report`
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// What `launch --record` or `join --record` wrote
    #[arg(required_unless_present = "timeline", value_name = "RECORD")]
    pub records: Vec<PathBuf>,
    /// Write a page with charts to this file; it needs nothing beside itself
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// On the page, compare the runs and leave out what is told of each
    #[arg(long, requires = "html")]
    pub overview: bool,
    /// Draw one step, who did what when, from what `launch --timeline` wrote to this folder
    #[arg(long, value_name = "FOLDER")]
    pub timeline: Option<PathBuf>,
    /// The iteration to draw [default: the one in which most was claimed]
    #[arg(long, requires = "timeline")]
    pub iteration: Option<u64>,
    /// Write a page with that step alone to this file, under the last policy or that of --of; `scripts/pictures` makes a picture of it
    #[arg(long, value_name = "FILE.html", requires = "timeline")]
    pub picture: Option<PathBuf>,
    /// The policy of the picture
    #[arg(long, value_name = "POLICY", requires = "picture")]
    pub of: Option<Policy>,
}

/// What every figure means.
const DEFINITIONS: [(&str, &str); 15] = [
    ("run", "the name of the record"),
    ("warm-up", "the first 5 iterations of each policy are left out of all figures; charts show them"),
    (
        "step",
        "from asking for the batches to the end of the optimizer step, on rank 0; mean, p50 and p95 over iterations",
    ),
    ("samples/s", "throughput: samples over the sum of the step times"),
    ("gain", "throughput over that of even batches in the same record"),
    (
        "ideal",
        "in each iteration the global batch over the sum of the speeds that the workers showed in it; a worker \
        that had no samples adds no speed",
    ),
    ("of ideal", "throughput over the ideal throughput: samples over the sum of the ideal step times"),
    (
        "like for like",
        "share of the ideal over that of even batches: the gain if the workers had been as fast under both; a load \
        that changes never meets both alike",
    ),
    (
        "over base",
        "like for like, against base instead of even batches: what a shared tail adds to the same forecasts",
    ),
    ("waiting", "time that workers waited at the barrier for the last one, over step time times workers"),
    ("claiming", "the same for waits for the answers to claims on a shared tail"),
    (
        "chunking",
        "the same for what chunks took beyond their samples at the pace of the worker's base in the same step; a speed that changes \
         within a step shows here too, either way",
    ),
    ("chunks", "of a shared tail that all workers together claimed in a step, on average"),
    ("final loss", "of the network at the end, over samples that were not trained on"),
    (
        "service",
        "the time of one /allocate inside the predictor, as it says itself in its server-timing header; \
        the round trip is what rank 0 measured",
    ),
];

/// Reads the records and writes what was wanted.
///
/// # Errors
/// A record that cannot be read or breaks a rule, a file that cannot be written.
pub fn run(args: &ReportArgs) -> Result<()> {
    let runs: Vec<Run> = args.records.iter().map(|path| Run::read(path)).collect::<Result<_, _>>()?;
    let results = Results::of(&runs);
    let steps =
        args.timeline.as_deref().map(|folder| Steps::of(recorded::read(folder)?).charts(args.iteration));
    let steps = steps.transpose()?.unwrap_or_default();
    if let Some(path) = &args.picture {
        let mut wanted = steps.iter().rev().filter(|(policy, _)| args.of.is_none_or(|of| *policy == of));
        let (_, chart) = wanted.next().context("--of: the timeline has no such policy")?;
        put(path, Report::of_chart(chart).to_html().as_bytes())?;
    }
    if let Some(path) = &args.html {
        put(path, page::report(&runs, &results, steps, args.overview).to_html().as_bytes())?;
    }
    if let Some(path) = &args.json {
        let mut json = serde_json::to_vec_pretty(&results).context("writing the figures as JSON")?;
        json.push(b'\n');
        put(path, &json)?;
    }
    if runs.is_empty() {
        return Ok(());
    }
    io::stdout().lock().write_all(table::text(&runs, &results).as_bytes()).context("writing the table")
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenstep_trainer::progress::statistics::WARM_UP;

    #[test]
    fn the_definitions_name_the_warm_up_that_is_used() {
        assert!(DEFINITIONS[1].1.contains(&format!("first {WARM_UP} ")));
    }
}

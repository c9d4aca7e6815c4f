//! Measures the cost of a claim, which is one atomic addition on a counter of the job's store, with 1 to 64
//! worker processes.
//!
//! `cargo run --release -p evenstep-trainer-lab --example claims -- --json claims.json`
//!
//! This process hosts the store, like `launch` does. Each worker is a separate process, connected over
//! loopback. For each number of workers, three situations are measured:
//!
//! - `calm`: each worker claims from time to time, as in training
//! - `busy`: the same, while a thread computes on every core
//! - `at once`: no pause between claims, which shows the throughput of the store

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

mod client;
mod measure;
mod table;

use measure::Situation;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measure claims on a store over loopback
#[derive(Debug, Parser)]
#[command(name = "claims")]
struct Options {
    /// File for the results, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Numbers of worker processes to measure, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64", value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: Vec<u32>,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// Run as a worker in this situation
    #[arg(long, hide = true, requires = "store", requires = "rank")]
    situation: Option<Situation>,
    /// Port of the store
    #[arg(long, hide = true)]
    store: Option<u16>,
    /// Rank of the worker
    #[arg(long, hide = true)]
    rank: Option<u32>,
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (0.1..=60.0).contains(&seconds) { Ok(seconds) } else { Err("must be from 0.1 to 60".into()) }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let run_time = Duration::from_secs_f64(options.seconds);
    if let (Some(situation), Some(port), Some(rank)) = (options.situation, options.store, options.rank) {
        return client::run(situation, port, rank, run_time);
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{}", table::head())?;
    let mut figures = Vec::new();
    for workers in options.workers {
        let row = Situation::ALL.map(|situation| measure::measure(situation, workers, run_time));
        let row = row.into_iter().collect::<Result<Vec<_>>>()?;
        writeln!(out, "{}", table::row(workers, &row))?;
        figures.extend(row);
    }
    writeln!(out, "\n{}", table::DEFINITIONS)?;
    if let Some(path) = options.json {
        let mut json = serde_json::to_vec_pretty(&figures)?;
        json.push(b'\n');
        std::fs::write(&path, json).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

//! Compares learning-rate policies for a growing global batch, in training runs that grow from the batch of
//! two workers to the batch of eight.
//!
//! `cargo run --release -p evenstep-trainer-lab --example learning_rate -- --report page.html`
//!
//! Each seed trains a network on generated samples with the batch of two workers. Then the batch grows by a
//! factor of four, and the run continues from the same state under each policy:
//!
//! - The learning rate grows by a factor of four at once.
//! - The learning rate grows by a factor of four in the ramp of Dynamic SGD.
//! - The learning rate does not change.
//! - The batch and the learning rate do not change, as if no worker had joined.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Parser;
use evenstep_trainer_lab::dataset::TeacherTask;

mod losses;
mod noise;
mod page;
mod training;

use losses::{Length, Rate, WINDOW};
use training::{LARGE, Policy, SMALL};

/// Seed of the task. Models and sample orders have other seeds, one per run.
const TASK_SEED: u64 = 1;

/// Compare a jump and a ramp of the learning rate when the global batch grows
#[derive(Debug, Parser)]
#[command(name = "learning_rate")]
struct Options {
    /// File for a page with the charts and the table
    #[arg(long, value_name = "F.html")]
    report: Option<PathBuf>,
    /// Number of runs per policy, at least 2 for a standard error
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=64))]
    seeds: u64,
    /// Learning rates for the small batch, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "0.00625,0.0125,0.025,0.05,0.1", value_parser = learning_rate)]
    learning_rates: Vec<f64>,
    /// Learning rate of the charts, one of --learning-rates
    #[arg(long, default_value = "0.05", value_parser = learning_rate)]
    drawn: f64,
    /// Number of iterations with the small batch
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(WINDOW / SMALL..=10_000))]
    before: u64,
    /// Number of iterations with the large batch
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(2 * WINDOW / LARGE..=2_500))]
    after: u64,
}

fn learning_rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if rate > 0.0 && rate <= 10.0 { Ok(rate) } else { Err("must be above 0 and at most 10".into()) }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    if !options.learning_rates.contains(&options.drawn) {
        let rates = &options.learning_rates;
        return Err(format!("--drawn {}: must be one of --learning-rates {rates:?}", options.drawn).into());
    }
    let folder =
        options.report.as_deref().and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        // Checked before the training, which takes long.
        return Err(format!("--report: the folder {} does not exist; create it", folder.display()).into());
    }
    // With one thread, sums and losses are reproducible.
    tch::set_num_threads(1);
    let length = Length { before: options.before, after: options.after };
    let data = TeacherTask { samples: length.samples(), seed: TASK_SEED }.generate();
    let mut out = std::io::stdout().lock();
    let line = |cells: &[String]| cells.iter().map(|cell| format!("{cell:<20}")).collect::<String>();
    writeln!(out, "{}", line(&page::COLUMNS.map(String::from)).trim_end())?;
    let mut rates = Vec::new();
    for learning_rate in &options.learning_rates {
        let rate = Rate::train(&data, *learning_rate, options.seeds, length)?;
        writeln!(out, "{}", line(&page::row(&rate)).trim_end())?;
        rates.push(rate);
    }
    writeln!(out, "{}", page::summary(&rates))?;
    let noise = [Policy::Jump, Policy::Ramp]
        .map(|policy| noise::measure(&data, options.drawn, length, policy).map(|noise| (policy, noise)));
    let noise = noise.into_iter().collect::<Result<Vec<_>, _>>()?;
    let Some(drawn) = rates.iter().find(|rate| rate.learning_rate == options.drawn) else {
        return Err("--drawn: no run with this learning rate".into());
    };
    let charts = vec![page::losses(drawn), page::noise(&noise, options.drawn)];
    if let Some(path) = &options.report {
        let html = page::report(&rates, charts, length, options.seeds).to_html();
        std::fs::write(path, html).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

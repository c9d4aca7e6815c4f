//! What background work makes of the gaps of a burst-parallel training, and what it costs: measured.
//!
//! Real processes, each pinned to a core, take turns: the plan alone, the plan with background jobs in its gaps, data parallelism alone, one rank
//! alone, background jobs alone. Turns alternate, so that whatever else the machine does meets all of them.
//!
//! - `args`, `plans`: what is compared
//! - `rank`: one rank's turns
//! - `figures`, `page`: what came of them

mod args;
mod figures;
mod page;
mod plans;
mod rank;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evenstep_c10d::Store;

pub use args::GapsArgs;
pub use figures::Figures;
pub use rank::{Arm, Beside, Told, Turn};

use crate::board::Board;
use crate::launch::{Crew, Ended, TIED, signals};
use crate::output::Output;
use crate::pin;

/// The store waits this long for its own port, and for what a rank that has ended told.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the measurement, or one rank of it.
///
/// # Errors
/// Values that do not go together, a rank that failed, a file that cannot be written.
pub fn run(args: &GapsArgs) -> Result<Ended> {
    if let (Some(rank), Some(store)) = (args.rank, &args.store) {
        let told = rank::run(args, rank, store)?;
        let shared = Store::connect(&store.host, store.port, STORE_TIMEOUT)?;
        shared.set(&key(rank), &serde_json::to_vec(&told)?)?;
        return Ok(Ended::Finished);
    }
    let cores = args.cores(&pin::cores()?)?;
    let output = Output::new("gaps");
    let signals = signals()?;
    let store = Store::host("127.0.0.1", 0, STORE_TIMEOUT)?;
    let mut crew = Crew::default();
    for rank in 0..cores.len() {
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.args(std::env::args_os().skip(1));
        command.args([format!("--rank={rank}"), format!("--store=127.0.0.1:{}", store.port())]);
        command.stdin(Stdio::null()).env(TIED, "1").env("TORCH_CPP_LOG_LEVEL", "FATAL");
        crew.start(command)?;
    }
    let ended = crew.watch(&signals, &output, &Board::default())?;
    if ended != Ended::Finished {
        return Ok(ended);
    }
    let told = |rank| -> Result<Told> {
        let told = store.get(&key(rank), STORE_TIMEOUT)?;
        serde_json::from_slice(&told).with_context(|| format!("what rank {rank} told"))
    };
    let told: Vec<Told> = (0..cores.len()).map(told).collect::<Result<_>>()?;
    let figures = Figures::of(&told, args.background.slow_down_limit);
    output.say(&figures.in_words());
    if let Some(path) = &args.json {
        write(path, &serde_json::to_string_pretty(&serde_json::json!({"figures": figures, "ranks": told}))?)?;
    }
    if let Some(path) = &args.report {
        write(path, &page::page(args, &cores, &told, &figures).to_html())?;
    }
    ensure!(figures.unchanged, "the parameters with background work differ from those without");
    Ok(ended)
}

fn key(rank: usize) -> String {
    format!("told/{rank}")
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

//! The command `evenstep-predictor store`: maintenance of a store without serving it.
//!
//! - `check` reads a whole store and reports its faults.
//! - `export` writes the tables as CSV.
//! - `import` copies a store to another database.
//! - `vacuum` releases space and makes backups.

mod args;

mod text;

mod progress;

mod check;

mod export;

mod import;

mod vacuum;

pub use args::Args;
pub use check::ModelReaders;

use args::Command;

/// Runs a command. The arguments must have passed [`Args::check`]; `models` reads values that the store keeps
/// as bytes.
///
/// # Errors
/// If the store cannot be used, has faults (`check`), or an output cannot be written.
pub fn run(args: &Args, models: &ModelReaders) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match &args.command {
            Command::Check(args) => check::run(args, models).await,
            Command::Export(args) => export::run(args).await,
            Command::Import(args) => import::run(args).await,
            Command::Vacuum(args) => vacuum::run(args).await,
        }
    })
}

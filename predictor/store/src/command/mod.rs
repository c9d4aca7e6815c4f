//! `evenstep-predictor store`: looking after a store without serving it.
//!
//! `check` reads all of it and reports what is wrong; `export` writes its tables as CSV; `import` moves it to another
//! database; `vacuum` gives back room and makes backups.

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

/// Runs one of the commands. The flags must pass [`Args::check`]; `models` reads what the store keeps as bytes.
///
/// # Errors
/// If the store cannot be used, something is wrong with it (`check`), or an output cannot be written.
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

//! `evenstep-predictor store`: looking after a store without serving it.
//!
//! `check` reads all of it and says what is wrong; `export` writes its tables as CSV; `import` moves it to another database;
//! `vacuum` gives back room and makes backups. The SQL of all of them is in [`evenstep_store`].

mod args;

mod check;

mod export;

mod import;

mod vacuum;

mod progress;

mod words;

pub use args::Args;

use args::Command;

/// Runs one of the commands. The flags must pass [`Args::check`].
///
/// # Errors
/// Where the store cannot be used, something is wrong with it (`check`), or an output cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match &args.command {
            Command::Check(args) => check::run(args).await,
            Command::Export(args) => export::run(args).await,
            Command::Import(args) => import::run(args).await,
            Command::Vacuum(args) => vacuum::run(args).await,
        }
    })
}

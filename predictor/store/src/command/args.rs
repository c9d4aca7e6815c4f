//! Command-line arguments of `evenstep-predictor store`.

use std::path::PathBuf;

use clap::Subcommand;
use evenstep_protocol::JobId;

/// Maintain a store: check, export, import, vacuum
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Subcommand.
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Read a whole store and report its faults; read-only, and safe while a predictor serves it
    Check(CheckArgs),
    /// Write each table as CSV, all from one snapshot; safe while a predictor serves the store
    Export(ExportArgs),
    /// Copy a store that no predictor serves into an empty SQLite or PostgreSQL store, all or nothing
    Import(ImportArgs),
    /// Release the space of deleted rows, or back up an SQLite store to a new file
    Vacuum(VacuumArgs),
}

/// Address of the store.
#[derive(Debug, clap::Args)]
pub(super) struct StoreFlag {
    /// Store address: sqlite://FILE or postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "ADDRESS", env = "EVENSTEP_STORE", default_value = "sqlite://evenstep.db")]
    pub store: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    pub store: StoreFlag,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    pub store: StoreFlag,
    /// Output folder for TABLE.csv files; created if missing
    #[arg(long, value_name = "FOLDER")]
    pub to: PathBuf,
    /// Export only the rows of this job
    #[arg(long, value_name = "JOB")]
    pub job: Option<JobId>,
    /// Overwrite existing files
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct ImportArgs {
    /// Store to read; it is not changed
    #[arg(long, value_name = "ADDRESS")]
    pub from: String,
    /// Store to fill; created if missing, otherwise it must be empty
    #[arg(long, value_name = "ADDRESS")]
    pub store: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct VacuumArgs {
    #[command(flatten)]
    pub store: StoreFlag,
    /// Write a backup to this new file instead (SQLite only); safe while a predictor serves the store
    #[arg(long, value_name = "FILE")]
    pub into: Option<PathBuf>,
}

impl Args {
    /// Checks the rules between flags.
    ///
    /// # Errors
    /// A message that names the first conflict.
    pub fn check(&self) -> Result<(), String> {
        match &self.command {
            Command::Import(args) if args.from == args.store =>
            // The addresses are not repeated: they may contain a password.
            {
                Err("--from and --store are the same: a store cannot be moved into itself; give two different stores".to_owned())
            }
            Command::Import(_) | Command::Check(_) | Command::Export(_) | Command::Vacuum(_) => Ok(()),
        }
    }
}

//! What can be asked of a store.

use std::path::PathBuf;

use clap::Subcommand;
use evenstep_protocol::JobId;

/// Look after a store without serving it: check, export, move, back up
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Read all of a store and say what is wrong with it; changes nothing, and works beside a predictor that serves it
    Check(CheckArgs),
    /// Write a store's tables as CSV, as they are at one moment; works beside a predictor that serves it
    Export(ExportArgs),
    /// Move a store that nobody serves into an empty one, of either database: all or nothing
    Import(ImportArgs),
    /// Give back the room of what was deleted, or back up an SQLite store to a new file
    Vacuum(VacuumArgs),
}

/// Which store.
#[derive(Debug, clap::Args)]
pub(super) struct StoreFlag {
    /// sqlite://FILE or postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "ADDRESS", env = "EVENSTEP_STORE", default_value = "sqlite://evenstep.db")]
    pub store: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    pub store: StoreFlag,
    /// Say it as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    pub store: StoreFlag,
    /// The folder for the files, TABLE.csv for each table; made where it is not there
    #[arg(long, value_name = "FOLDER")]
    pub to: PathBuf,
    /// Only what belongs to this job
    #[arg(long, value_name = "JOB")]
    pub job: Option<JobId>,
    /// Replace files of these names
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct ImportArgs {
    /// The store that is read; it is not changed
    #[arg(long, value_name = "ADDRESS")]
    pub from: String,
    /// The store that is filled; made where it is not there, and empty where it is
    #[arg(long, value_name = "ADDRESS")]
    pub store: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct VacuumArgs {
    #[command(flatten)]
    pub store: StoreFlag,
    /// Leave the store as it is and write a backup of it to this new file (SQLite); works beside a predictor that serves it
    #[arg(long, value_name = "FILE")]
    pub into: Option<PathBuf>,
}

impl Args {
    /// Checks the rules between flags.
    ///
    /// # Errors
    /// The first that is broken, in words.
    pub fn check(&self) -> Result<(), String> {
        match &self.command {
            Command::Import(args) if args.from == args.store =>
            // Not repeated: an address may hold a password.
            {
                Err("--from and --store are the same: a store cannot be moved into itself".to_owned())
            }
            Command::Import(_) | Command::Check(_) | Command::Export(_) | Command::Vacuum(_) => Ok(()),
        }
    }
}

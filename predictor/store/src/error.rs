//! Why something could not be kept or read.

use std::path::PathBuf;

use crate::limits::{QUEUE_BYTES_MAX, QUEUE_MAX};

/// Why something could not be kept or read. Unless it says otherwise nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address of the store is not one we know.
    #[error("store {0:?}: must be sqlite://FILE or postgres://USER@HOST/DATABASE")]
    Address(String),
    /// The address of a PostgreSQL store cannot be read.
    #[error("store postgres://..: {0}; must be postgres://USER@HOST/DATABASE")]
    Url(String),
    /// Another process serves this file.
    #[error("{0} is held by another evenstep-predictor: one at a time may serve an SQLite store")]
    InUse(PathBuf),
    /// A lock file cannot be made.
    #[error("{path}: {source}")]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The schema is that of a later evenstep-predictor.
    #[error(
        "its schema is {found}, and {known} is the newest that this evenstep-predictor knows: use a newer one"
    )]
    Newer {
        /// The version of the schema.
        found: i64,
        /// The newest that we know.
        known: i64,
    },
    /// The database has no schema of ours.
    #[error("there is no store of evenstep-predictor in it")]
    Foreign,
    /// It was to be filled, and it holds something.
    #[error("it is not empty: it has rows in {0}")]
    NotEmpty(String),
    /// Predictors serve it, at these addresses.
    #[error("it is served by {0}: stop it first")]
    Served(String),
    /// Another command has the store for itself.
    #[error("another command works on it, or it is the same store by another name")]
    Held,
    /// A table is not as we know it.
    #[error("{0}")]
    Table(String),
    /// A backup was asked of a store that is no file.
    #[error("--into backs up SQLite stores; a PostgreSQL database is backed up by pg_dump")]
    NotAFile,
    /// A file is there already.
    #[error("{0}: there is such a file; a backup takes a new name")]
    Exists(PathBuf),
    /// A file cannot be written.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The queue of writes is full.
    #[error("{QUEUE_MAX} writes or {} MiB are waiting: the store is slower than what comes in", QUEUE_BYTES_MAX >> 20)]
    Busy,
    /// The writer has ended (shutdown).
    #[error("the store is closed")]
    Closed,
    /// Another request, which went away before it heard of it, made this change already.
    #[error("another change came first: ask again")]
    Taken,
    /// This predictor may not answer for its jobs any more: it could not renew its lease in time.
    #[error("this predictor's lease is over; another may have taken its jobs: ask again")]
    Fenced,
    /// The owner of a job changes at this moment.
    #[error("the job is changing hands: ask again")]
    Unsettled,
    /// The database did not answer in time. Whether the change was made is not known: asking again is safe.
    #[error("the database did not answer in time")]
    Silent,
    /// The database says no.
    #[error("the database: {0}")]
    Database(#[from] sqlx::Error),
    /// A commit failed for all that were in it.
    #[error("the database: {said}")]
    Failed {
        /// What kind of failure.
        fault: Fault,
        /// What it said.
        said: String,
    },
    /// The schema could not be brought up to date.
    #[error("the schema: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// Models that cannot be written down.
    #[error("models cannot be stored: {0}")]
    Models(String),
    /// What was stored cannot be understood.
    #[error("stored {what} cannot be read: {source}")]
    Corrupt {
        /// What it is.
        what: &'static str,
        /// Why not.
        source: serde_json::Error,
    },
}

/// What is wrong with a database, as far as whoever runs it can do something about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No room on its disk.
    Full,
    /// It cannot be written to.
    ReadOnly,
    /// It cannot be reached.
    Away,
    /// Something else; the log says what.
    Other,
}

impl Fault {
    /// In words that give nothing away.
    pub fn words(self) -> &'static str {
        match self {
            Self::Full => "the disk of the store is full",
            Self::ReadOnly => "the store is read-only",
            Self::Away => "the database cannot be reached",
            Self::Other => "the store failed; the log says why",
        }
    }
}

impl StoreError {
    /// What is wrong with the database, where that is what it is.
    pub fn fault(&self) -> Option<Fault> {
        match self {
            Self::Silent => Some(Fault::Away),
            Self::Failed { fault, .. } => Some(*fault),
            Self::Database(error) => Some(fault(error)),
            Self::Migrate(_) | Self::Corrupt { .. } | Self::Models(_) => Some(Fault::Other),
            _ => None,
        }
    }

    /// The same again for the next one in a group that failed.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Fenced => Self::Fenced,
            Self::Silent => Self::Silent,
            other => Self::Failed { fault: other.fault().unwrap_or(Fault::Other), said: other.to_string() },
        }
    }

    /// Whether it lies in what was to be written: other writes may succeed.
    pub(crate) fn is_of_the_write(&self) -> bool {
        match self {
            Self::Taken | Self::Corrupt { .. } => true,
            Self::Database(sqlx::Error::Database(error)) => {
                // Class 22 of SQL: data that a type does not take.
                error.kind() != sqlx::error::ErrorKind::Other
                    || error.code().is_some_and(|code| code.len() == 5 && code.starts_with("22"))
            }
            _ => false,
        }
    }
}

/// By the codes of SQLite (the lowest byte of a number) and of PostgreSQL (five characters).
fn fault(error: &sqlx::Error) -> Fault {
    let database = match error {
        sqlx::Error::Database(database) => database,
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => {
            return Fault::Away;
        }
        _ => return Fault::Other,
    };
    let code = database.code().unwrap_or_default();
    match code.parse::<u32>().ok().filter(|_| code.len() != 5).map(|code| code & 0xff) {
        Some(13) => Fault::Full,
        Some(8) => Fault::ReadOnly,
        Some(14) => Fault::Away,
        Some(_) => Fault::Other,
        None if code == "53100" => Fault::Full,
        None if code == "25006" => Fault::ReadOnly,
        None if code.starts_with("08") || code.starts_with("57P") || code == "53300" => Fault::Away,
        None => Fault::Other,
    }
}

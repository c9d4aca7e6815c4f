//! Errors of the store.

use std::io;
use std::path::PathBuf;

use crate::limits::{QUEUE_BYTES_MAX, QUEUE_MAX};

/// An error of the store. Unless a variant says otherwise, nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address has an unknown form.
    #[error("store address {0:?}: must be sqlite://FILE or postgres://USER@HOST/DATABASE")]
    Address(String),
    /// The address of a PostgreSQL store is invalid.
    #[error("store postgres://..: {0}; must be postgres://USER@HOST/DATABASE")]
    Url(String),
    /// The address of a PostgreSQL store names several hosts.
    #[error(
        "store postgres://..: {0:?} must be one host; name an address that always leads to the primary, such as a virtual IP address or a DNS name"
    )]
    Hosts(String),
    /// A connection to PostgreSQL lacks the settings that were requested with it.
    #[error(
        "the connection lacks the requested settings: statement_timeout is {0:?}, as behind a connection pooler; connect to PostgreSQL itself, the predictor has its own pools"
    )]
    Pooler(String),
    /// Another process serves this SQLite file.
    #[error(
        "{0} is held by another evenstep-predictor; stop it first: only one process can serve an SQLite store"
    )]
    InUse(PathBuf),
    /// The file cannot be opened or locked.
    #[error("{path}: {source}")]
    Lock {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The file belongs to another program.
    #[error("the file is not a store of evenstep-predictor: {0}; choose another file with --store")]
    NotAStore(String),
    /// The file is damaged.
    #[error(
        "the file is damaged: {0}; restore a backup, or find the damage with `evenstep-predictor store check`"
    )]
    Damaged(String),
    /// The write-ahead log of a killed predictor is missing.
    #[error(
        "{log} was deleted after the predictor was killed, and the newest commits with it; restore it or a backup, or delete {index} to continue without them"
    )]
    LogRemoved {
        /// The write-ahead log.
        log: PathBuf,
        /// Its index.
        index: PathBuf,
    },
    /// The write-ahead log is damaged before commits that were durable.
    #[error(
        "{log} is damaged at byte {at}, and commits after it are lost; restore a backup, or cut the log there with `truncate --size={at} {log}` to continue without them"
    )]
    LogDamaged {
        /// The write-ahead log.
        log: PathBuf,
        /// Offset of the damage, in bytes.
        at: u64,
    },
    /// A file of the store was deleted or replaced while it was being served.
    #[error(
        "{0} was deleted or replaced while the predictor used it; stop the predictor and restore a backup"
    )]
    Removed(PathBuf),
    /// A newer evenstep-predictor wrote the schema.
    #[error(
        "schema {found} is newer than {known}, the newest that this evenstep-predictor supports; use a newer version"
    )]
    Newer {
        /// Version of the schema.
        found: i64,
        /// Newest supported version.
        known: i64,
    },
    /// A predictor of an earlier version serves the store.
    #[error(
        "schema {found} is older than {known}, and a predictor of that version serves the store; stop it, or use its version"
    )]
    Older {
        /// Version of the schema.
        found: i64,
        /// Version that is required.
        known: i64,
    },
    /// The database does not contain an evenstep schema.
    #[error("the database contains no store of evenstep-predictor")]
    Foreign,
    /// The target of an import contains rows.
    #[error("the target must be empty, but has rows in {0}")]
    NotEmpty(String),
    /// Predictors at these addresses serve the store.
    #[error("the store is served by {0}; stop all of them first")]
    Served(String),
    /// Another command holds the store exclusively.
    #[error("another command is using the store, or both addresses name the same store")]
    Held,
    /// A table differs from the expected schema.
    #[error("{0}")]
    Table(String),
    /// A backup was requested of a store that is not a file.
    #[error("--into supports only SQLite stores; back up a PostgreSQL database with pg_dump")]
    NotSqlite,
    /// The backup's file exists.
    #[error("{0}: file exists; give the backup a new name")]
    Exists(PathBuf),
    /// A file cannot be written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The queue of writes is full.
    #[error("the write queue is full ({QUEUE_MAX} writes or {} MiB): the store is too slow for the load; retry later", QUEUE_BYTES_MAX >> 20)]
    Busy,
    /// The writer task has ended, during shutdown.
    #[error("the store is closed")]
    Closed,
    /// Another write changed the same rows first: one whose outcome was not known, or another predictor's write.
    #[error("an earlier write, whose outcome was not known, changed the same state; retry the request")]
    Superseded,
    /// This predictor could not renew its lease in time, so it may no longer serve its jobs.
    #[error(
        "this predictor's lease has expired, and another predictor may own its jobs now; retry the request"
    )]
    Fenced,
    /// Other views use all connections for views.
    #[error("too many views are read at once; retry the request")]
    Watched,
    /// A view took longer than its time limit.
    #[error("the view took too long; retry, or request a shorter time or fewer iterations")]
    Late,
    /// The job is changing its owner.
    #[error("the job is moving to another predictor; retry the request")]
    OwnerChanging,
    /// The database did not respond in time. The change may or may not have been made; the request can be
    /// repeated safely.
    #[error("the database did not respond in time")]
    Silent,
    /// The database returned an error.
    #[error("{lead}: {0}", lead = fault(.0).lead())]
    Database(#[from] sqlx::Error),
    /// The commit of a group of writes failed.
    #[error("{said}")]
    Failed {
        /// Class of the failure.
        fault: Fault,
        /// Message of the failure.
        said: String,
    },
    /// The schema could not be upgraded.
    #[error("schema migration failed: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// Models that cannot be serialized.
    #[error("models cannot be stored: {0}")]
    Models(String),
    /// A stored value is invalid.
    #[error("stored {what} cannot be read: {source}")]
    Corrupt {
        /// Kind of value.
        what: &'static str,
        /// Cause.
        source: serde_json::Error,
    },
}

/// Class of a database failure, as far as its operator can act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The disk is full.
    Full,
    /// The database is read-only.
    ReadOnly,
    /// The database is unreachable.
    Unreachable,
    /// The file is damaged.
    Damaged,
    /// A file of the store was deleted or replaced.
    Removed,
    /// A query took too long.
    Slow,
    /// Any other failure; the log has the details.
    Other,
}

impl Fault {
    /// The first words of an error message. SQLite's own message does not always name a full disk.
    fn lead(self) -> &'static str {
        if self == Self::Full { self.words() } else { "database error" }
    }

    /// Describes the failure without revealing details of the database.
    pub fn words(self) -> &'static str {
        match self {
            Self::Full => "the disk of the store is full",
            Self::ReadOnly => "the store is read-only",
            Self::Unreachable => "the database cannot be reached",
            Self::Damaged => "the file of the store is damaged; restore a backup",
            Self::Removed => {
                "a file of the store was deleted or replaced; stop the predictor and restore a backup"
            }
            Self::Slow => "the database took too long; retry, and request less history at once",
            Self::Other => "the store failed; see the predictor's log",
        }
    }
}

impl StoreError {
    /// Returns the class of failure if the database caused this error.
    pub fn fault(&self) -> Option<Fault> {
        match self {
            Self::Silent => Some(Fault::Unreachable),
            Self::Late => Some(Fault::Slow),
            Self::Failed { fault, .. } => Some(*fault),
            Self::Database(error) => Some(fault(error)),
            Self::File { source, .. } if is_full(source) => Some(Fault::Full),
            Self::Damaged(_) => Some(Fault::Damaged),
            Self::Removed(_) => Some(Fault::Removed),
            Self::Migrate(_) | Self::Corrupt { .. } | Self::Models(_) => Some(Fault::Other),
            _ => None,
        }
    }

    /// Copies this error for the next write of a failed group.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Fenced => Self::Fenced,
            Self::Silent => Self::Silent,
            other => Self::Failed { fault: other.fault().unwrap_or(Fault::Other), said: other.to_string() },
        }
    }

    /// Whether the error lies in the write itself, so that other writes of its group may succeed.
    pub(crate) fn belongs_to_the_write(&self) -> bool {
        match self {
            Self::Superseded | Self::Corrupt { .. } => true,
            Self::Database(sqlx::Error::Database(error)) => {
                // Class 22 of SQLSTATE: data exceptions.
                error.kind() != sqlx::error::ErrorKind::Other
                    || error.code().is_some_and(|code| code.len() == 5 && code.starts_with("22"))
            }
            _ => false,
        }
    }
}

/// Whether a file could not grow.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Classifies by the error codes of SQLite (the lowest byte of a number) and PostgreSQL (five characters).
fn fault(error: &sqlx::Error) -> Fault {
    let database = match error {
        sqlx::Error::Database(database) => database,
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => {
            return Fault::Unreachable;
        }
        _ => return Fault::Other,
    };
    let code = database.code().unwrap_or_default();
    // Shared memory cannot be allocated: SQLite names no cause, but it is a full disk.
    if code == "4874" {
        return Fault::Full;
    }
    match code.parse::<u32>().ok().filter(|_| code.len() != 5).map(|code| code & 0xff) {
        Some(9) => Fault::Slow,
        Some(13) => Fault::Full,
        Some(8) => Fault::ReadOnly,
        Some(14) => Fault::Unreachable,
        Some(11 | 26) => Fault::Damaged,
        Some(_) => Fault::Other,
        None if code == "53100" => Fault::Full,
        None if code == "25006" => Fault::ReadOnly,
        None if code == "57014" => Fault::Slow,
        None if code.starts_with("08") || code.starts_with("57P") || code == "53300" => Fault::Unreachable,
        None => Fault::Other,
    }
}

//! Everything that is kept: the only module that names sqlx.
//!
//! Writes go through one bounded queue to one `writer` task, which commits what is waiting in one transaction (group
//! commit) and answers when it is durable. Reads use a small pool beside it (SQLite in WAL mode: they never wait).

mod offline;
mod read;
mod writer;

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use evenstep_protocol::{
    JobId, JobSpec, JoinRequest, TelemetryBatch, WorkerId, WorkerOverride, WorkerReport,
};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::{mpsc, oneshot};

pub use offline::read_reports;
pub use read::{StoredAnswer, StoredJob, StoredReport, StoredWorker};

/// Writes that may wait for the writer; more are refused, so that memory stays bounded.
const QUEUE_MAX: usize = 1024;
/// Connections for reading.
const READERS: u32 = 4;
/// How long a connection waits for another process's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Why something could not be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address of the store is not one we know.
    #[error("store {0:?}: must be sqlite://FILE")]
    Address(String),
    /// The queue of writes is full.
    #[error("{QUEUE_MAX} writes are waiting: the store is slower than what comes in")]
    Busy,
    /// The writer has ended (shutdown).
    #[error("the store is closed")]
    Closed,
    /// Another request, which went away before it heard of it, made this change already.
    #[error("another change came first: ask again")]
    Taken,
    /// The database says no.
    #[error("the database: {0}")]
    Database(#[from] sqlx::Error),
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

/// One change; a transaction makes several, all or none.
#[derive(Debug, Clone)]
pub enum Change {
    /// A job's wishes are new or changed.
    PutJob {
        /// The job.
        job_id: JobId,
        /// Its wishes.
        spec: Box<JobSpec>,
    },
    /// A job and all its history goes.
    DeleteJob {
        /// The job.
        job_id: JobId,
    },
    /// The set of workers changed.
    Membership {
        /// The job.
        job_id: JobId,
        /// The generation that this change builds on. Fails with [`StoreError::Taken`] where another came in between.
        replaces: u64,
        /// Its generation now.
        generation: u64,
        /// The generation of its latest departure.
        departed_generation: u64,
        /// What happened to whom.
        events: Vec<MemberEvent>,
    },
    /// Iterations went like this.
    Reports {
        /// The job.
        job_id: JobId,
        /// One for each worker and iteration; those stored before stay as they are.
        reports: Vec<WorkerReport>,
    },
    /// An iteration is answered. Fails with [`StoreError::Taken`] where it was answered in this generation before.
    Allocation {
        /// The job.
        job_id: JobId,
        /// The iteration.
        iteration: u64,
        /// The generation it was planned in.
        generation: u64,
        /// The answer, byte for byte.
        answer: String,
    },
    /// Where the learning-rate rule of a job stands, in the place of what was stored before.
    LearningRate {
        /// The job.
        job_id: JobId,
        /// The rule's state (JSON).
        state: String,
    },
    /// What the models of a job have learned, in the place of what was stored before.
    Models {
        /// The job.
        job_id: JobId,
        /// The layout of the state.
        format: u32,
        /// The models.
        state: Vec<u8>,
    },
    /// What was learned on a kind of device, in the place of what was stored before.
    DeviceModel {
        /// The device, as workers name it.
        device: String,
        /// The layout of the state.
        format: u32,
        /// What was learned.
        state: Vec<u8>,
    },
    /// An agent's samples; those stored before stay as they are.
    Telemetry(TelemetryBatch),
}

/// What happened to a worker.
#[derive(Debug, Clone)]
pub struct MemberEvent {
    /// The worker.
    pub worker: WorkerId,
    /// What happened.
    pub kind: MemberEventKind,
}

/// Kinds of changes of the set of workers.
#[derive(Debug, Clone)]
pub enum MemberEventKind {
    /// It takes part, with these bounds, behind the others.
    Joined(JoinRequest),
    /// It still takes part, with new bounds.
    Rejoined(JoinRequest),
    /// It said that it leaves.
    Left,
    /// Its lease ran out.
    Expired,
    /// It ran out of memory: it gets at most so many samples at once from now on.
    OutOfMemory(u64),
    /// What an operator wants of it; `None` where that is lifted.
    Override(Option<WorkerOverride>),
}

/// A write on its way to the writer.
struct Write {
    changes: Vec<Change>,
    at_unix_ms: i64,
    done: oneshot::Sender<Result<u64, StoreError>>,
}

/// The store.
#[derive(Debug, Clone)]
pub struct Store {
    writes: mpsc::Sender<Write>,
    readers: SqlitePool,
}

impl Store {
    /// Opens the store, creates it where it is not there, and brings its schema up to date.
    ///
    /// Returns the handle of the writer task, which ends when the last [`Store`] is dropped and all is written.
    ///
    /// # Errors
    /// Where the address is wrong, the file cannot be used or its schema is not ours.
    pub async fn open(address: &str) -> Result<(Self, tokio::task::JoinHandle<()>), StoreError> {
        let options = sqlite_options(address)?;
        let mut connection = options.connect().await?;
        sqlx::migrate!("../migrations/sqlite").run(&mut connection).await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .connect_lazy_with(options.create_if_missing(false));
        let (writes, queue) = mpsc::channel(QUEUE_MAX);
        let writer = tokio::spawn(writer::run(connection, queue));
        Ok((Self { writes, readers }, writer))
    }

    /// Makes changes, all or none; returns once they are durable, with the number of rows that were new.
    ///
    /// # Errors
    /// [`StoreError::Busy`] where too many writes wait, else what went wrong; then nothing was changed.
    pub async fn write(&self, changes: Vec<Change>, at_unix_ms: i64) -> Result<u64, StoreError> {
        let (done, outcome) = oneshot::channel();
        self.writes.try_send(Write { changes, at_unix_ms, done }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::Busy,
            mpsc::error::TrySendError::Closed(_) => StoreError::Closed,
        })?;
        outcome.await.map_err(|_| StoreError::Closed)?
    }

    /// Whether the writer answers: an empty transaction.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn check(&self) -> Result<(), StoreError> {
        self.write(Vec::new(), 0).await?;
        sqlx::query("SELECT 1 FROM job LIMIT 1").fetch_optional(&self.readers).await?;
        Ok(())
    }
}

/// A connection that commits durably: WAL, and a sync at every commit, so that an answered allocation outlives a power
/// cut and not only a crash of the process.
fn sqlite_options(address: &str) -> Result<SqliteConnectOptions, StoreError> {
    let options = SqliteConnectOptions::from_str("sqlite:")?
        .filename(sqlite_file(address)?)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging();
    Ok(options)
}

/// The file that an address names.
fn sqlite_file(address: &str) -> Result<&Path, StoreError> {
    let file = address.strip_prefix("sqlite://").filter(|file| !file.is_empty());
    file.map(Path::new).ok_or_else(|| StoreError::Address(address.into()))
}

/// Closes a connection with a checkpoint, so that the file stands alone.
async fn close(mut connection: sqlx::SqliteConnection) {
    if let Err(error) = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection).await {
        tracing::warn!(%error, "the last checkpoint failed; the WAL file holds what is missing");
    }
    if let Err(error) = connection.close().await {
        tracing::warn!(%error, "closing the database failed");
    }
}

//! Everything that is kept: the only module that names sqlx.
//!
//! Writes go through one bounded queue to one `writer` task, which commits what is waiting in one transaction (group
//! commit) and answers when it is durable. Reads use a small pool beside it: they never wait for the writer. SQLite and
//! PostgreSQL differ in `database` (connections), `rows` (rows in numbers), `schema` and `lease` (who owns what); all
//! other SQL is one text for both.

mod address;
mod apply;
mod bulk;
mod change;
mod database;
mod error;
mod from_row;
mod glance;
mod lease;
mod meter;
mod offline;
mod read;
mod retention;
mod roll_up;
mod room;
mod rows;
mod schema;
mod summary;
mod telemetry;
mod timescale;
mod vacuum;
mod writer;

pub mod tables;

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Semaphore, mpsc, oneshot};
use tracing::Span;

use database::{Readers, scalar};
use lease::Lease;
use meter::Meter;
use writer::{Queue, Write, Writer};

pub use address::Address;
pub use change::{Change, MemberEvent, MemberEventKind};
pub use error::{Fault, StoreError};
pub use glance::{Measured, Thinned};
pub use lease::{Owner, Sharing};
pub use offline::read_reports;
pub use read::{StoredAnswer, StoredJob, StoredReport, StoredWorker};
pub use retention::{RollUp, SampleKey};
pub use room::Room;
pub use summary::{HOUR_S, MINUTE_S, NodeStep, NodeSums, Reading, WorkerStep, WorkerSums, begin_of_step};
pub use telemetry::{TelemetryRow, TelemetryRows};
pub use vacuum::{back_up, vacuum};

/// Writes of each kind that may wait for the writer; more are refused, so that memory stays bounded.
const QUEUE_MAX: usize = 1024;
/// Bytes of each kind that may wait for the writer.
const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The store.
#[derive(Debug, Clone)]
pub struct Store {
    urgent: Line,
    bulk: Line,
    readers: Readers,
    lease: Arc<Lease>,
    /// The registration that writes are decided in; `None` where they are anybody's.
    registration: Option<u64>,
    /// Whether the latest commit failed.
    failing: Arc<AtomicBool>,
    meter: Meter,
    /// Held while this process serves an SQLite file.
    _lock: Option<Arc<File>>,
}

/// A queue of writes, bounded by their number and by their bytes.
#[derive(Debug, Clone)]
struct Line {
    writes: mpsc::Sender<Write>,
    room: Arc<Semaphore>,
}

impl Line {
    fn new() -> (Self, mpsc::Receiver<Write>) {
        let (writes, queue) = mpsc::channel(QUEUE_MAX);
        (Self { writes, room: Arc::new(Semaphore::new(QUEUE_BYTES_MAX)) }, queue)
    }
}

impl Store {
    /// Opens the store, creates it where it is not there, and brings its schema up to date. `sharing` says how other
    /// predictors on the same PostgreSQL know this one.
    ///
    /// Returns the handle of the writer task, which ends when the last [`Store`] is dropped and all is written.
    ///
    /// # Errors
    /// Where the store cannot be used, its schema is not ours, or another process serves the file.
    pub async fn open(
        address: &Address,
        sharing: Option<Sharing>,
    ) -> Result<(Self, tokio::task::JoinHandle<()>), StoreError> {
        let lock = address.file().map(lock).transpose()?;
        let mut connection = database::connect(address).await?;
        schema::update(&mut connection).await?;
        let lease = Arc::new(Lease::new(sharing.zip(database::lease_connections(address))));
        let failing = Arc::new(AtomicBool::new(false));
        let meter = Meter::new();
        let (urgent, urgent_queue) = Line::new();
        let (bulk, bulk_queue) = Line::new();
        let writer = Writer {
            address: address.clone(),
            connection: Some(connection),
            lease: lease.clone(),
            failing: failing.clone(),
            meter: meter.clone(),
        };
        let writer = tokio::spawn(writer.run(Queue { urgent: urgent_queue, bulk: bulk_queue }));
        let readers = database::readers(address);
        let store = Self {
            urgent,
            bulk,
            readers,
            lease,
            registration: None,
            failing,
            meter,
            _lock: lock.map(Arc::new),
        };
        store.renew().await?;
        Ok((store, writer))
    }

    /// The same store for what is decided in a registration: writes fail once it is over.
    pub fn of_registration(&self, number: u64) -> Self {
        Self { registration: Some(number), ..self.clone() }
    }

    /// Makes changes, all or none; returns once they are durable, with the number of rows that were new.
    ///
    /// # Errors
    /// [`StoreError::Busy`] where too much waits, else what went wrong; then nothing was changed, unless the database fell
    /// silent in the middle.
    #[tracing::instrument(name = "store.write", level = "debug", skip_all, fields(changes = changes.len()))]
    pub async fn write(&self, changes: Vec<Change>, at_unix_ms: i64) -> Result<u64, StoreError> {
        let line = if changes.iter().any(Change::can_wait) { &self.bulk } else { &self.urgent };
        let bytes = changes.iter().map(Change::bytes).sum::<usize>().min(QUEUE_BYTES_MAX);
        let room = line.room.clone().try_acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX));
        let room = room.map_err(|_| StoreError::Busy)?;
        let (done, outcome) = oneshot::channel();
        let write = Write {
            changes,
            at_unix_ms,
            registration: self.registration,
            bytes,
            done,
            span: Span::current(),
            _room: room,
        };
        line.writes.try_send(write).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::Busy,
            mpsc::error::TrySendError::Closed(_) => StoreError::Closed,
        })?;
        outcome.await.map_err(|_| StoreError::Closed)?
    }

    /// Whether the store can be written and read, and this predictor may answer. After a failure by a write that needs
    /// all that writes need, so that what has recovered is seen to have.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn check(&self) -> Result<(), StoreError> {
        let registration = self.registration();
        let ailing = registration.is_err() || self.failing.load(Ordering::Relaxed);
        let probe = if ailing { vec![Change::Probe] } else { Vec::new() };
        self.write(probe, 0).await?;
        scalar!(&self.readers, i64, "SELECT count(*) FROM device_model")?;
        // Last: a lease that is over says less than what kept it from being renewed.
        registration.map(drop)
    }
}

/// Makes sure that no other process serves an SQLite file: the lock goes with the process.
fn lock(file: &std::path::Path) -> Result<File, StoreError> {
    let path = PathBuf::from(format!("{}.lock", file.display()));
    let opened = File::options().create(true).append(true).open(&path);
    let lock = opened.map_err(|source| StoreError::Lock { path: path.clone(), source })?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(std::fs::TryLockError::WouldBlock) => Err(StoreError::InUse(file.into())),
        Err(std::fs::TryLockError::Error(source)) => Err(StoreError::Lock { path, source }),
    }
}

fn json<T: serde::Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|source| StoreError::Corrupt { what: "value", source })
}

/// The integers of both databases are signed; http refuses numbers beyond them.
fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

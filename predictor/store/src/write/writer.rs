//! The writer: one task with one connection, which commits all waiting writes in one transaction.
//!
//! The database may reject a row of the group. Examples are a row of a deleted job, an invalid value, and, on
//! PostgreSQL, a sample that is sent again. The writer then rolls back and applies each write again in its
//! own savepoint, so only the failing writes are left out. After a connection error it opens a new connection
//! for the next group, so it recovers when the database does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sqlx::AssertSqlSafe;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{interval, timeout};

use super::faults::{Fate, Injected};
use super::group::{self, Changes};
use super::meter::Meter;
use crate::address::Address;
use crate::change::Change;
use crate::database::{self, Connection, Either, Readers, on};
use crate::error::StoreError;
use crate::file::LockedFile;
use crate::lease::{Held, Lease};
use crate::limits::PROBE_BYTES_MAX;

/// Maximum number of writes per commit.
const GROUP_MAX: usize = 128;
/// Maximum bytes of telemetry and models per commit, because allocations that arrive next wait for the
/// commit.
const GROUP_BULK_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Maximum time to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time of a commit. After a timeout its outcome is unknown: the connection is dropped, and state in
/// memory is read again.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum time that connections for reading take to close.
const READERS_CLOSE: Duration = Duration::from_secs(2);

/// Interval at which the file of an SQLite store is checked, in addition to the check before every commit.
const FILE_TICK: Duration = Duration::from_secs(1);

/// A write in the queue.
#[derive(Debug)]
pub(crate) struct Write {
    pub changes: Vec<Change>,
    pub at_unix_ms: i64,
    /// Registration under which it was decided; `None` if it is valid under any registration.
    pub registration: Option<u64>,
    pub bytes: usize,
    pub done: oneshot::Sender<Result<u64, StoreError>>,
    /// Its share of the queue's bytes.
    pub _room: OwnedSemaphorePermit,
}

/// The queues. Writes that training loops wait for come first.
#[derive(Debug)]
pub(crate) struct Queue {
    pub urgent: mpsc::Receiver<Write>,
    pub bulk: mpsc::Receiver<Write>,
}

impl Queue {
    /// Waits for writes and appends them to the group; returns false when all senders are dropped.
    async fn next(&mut self, group: &mut Vec<Write>) -> bool {
        let mut bytes = 0;
        tokio::select! {
            biased;
            Some(write) = self.urgent.recv() => group.push(write),
            Some(write) = self.bulk.recv() => {
                bytes = write.bytes;
                group.push(write);
            }
            else => return false,
        }
        while group.len() < GROUP_MAX
            && let Ok(write) = self.urgent.try_recv()
        {
            group.push(write);
        }
        while group.len() < GROUP_MAX
            && bytes < GROUP_BULK_BYTES_MAX
            && let Ok(write) = self.bulk.try_recv()
        {
            bytes += write.bytes;
            group.push(write);
        }
        true
    }
}

/// State of the writer task.
#[derive(Debug)]
pub(crate) struct Writer {
    pub address: Address,
    /// `None` after a failure.
    pub connection: Option<Connection>,
    /// The connections for reading. The last connection that closes removes SQLite's WAL, so they close before the writer's.
    pub readers: [Readers; 2],
    /// The SQLite file. Dropped after the connection.
    pub file: Option<LockedFile>,
    pub lease: Arc<Lease>,
    /// Size of the largest commit that failed since one of that size succeeded, in bytes, or 0; read by health checks.
    pub failing: Arc<AtomicUsize>,
    pub meter: Meter,
    pub faults: Injected,
}

impl Writer {
    /// Processes writes until all senders are dropped, then closes the database.
    pub async fn run(mut self, mut queue: Queue) {
        let mut group = Vec::with_capacity(GROUP_MAX);
        let mut tick = interval(FILE_TICK);
        let mut is_present = true;
        loop {
            tokio::select! {
                more = queue.next(&mut group) => {
                    if !more {
                        break;
                    }
                    self.commit(&mut group).await;
                }
                _ = tick.tick() => {
                    let present = self.check_file();
                    if let (true, Err(error)) = (is_present, &present) {
                        tracing::error!(%error, "the predictor accepts no more writes");
                        self.failing.fetch_max(1, Ordering::Relaxed);
                    }
                    is_present = present.is_ok();
                }
            }
        }
        for readers in &self.readers {
            let closed = async { on!(readers, pool => pool.close().await) };
            // A reader that does not end is interrupted with the process.
            drop(timeout(READERS_CLOSE, closed).await);
        }
        if let Some(connection) = self.connection {
            database::close(connection).await;
        }
    }

    /// Commits a group and reports the outcome to each waiting request.
    async fn commit(&mut self, group: &mut Vec<Write>) {
        let held = self.lease.held(Held::clone);
        // Decisions of an earlier registration may contradict allocations that another predictor has made
        // since.
        let is_stale = |write: &mut Write| match (write.registration, &held) {
            (Some(number), Ok(held)) => number != held.number,
            (Some(_), Err(_)) => true,
            (None, _) => false,
        };
        for write in group.extract_if(.., is_stale) {
            let _ = write.done.send(Err(StoreError::Fenced));
        }
        if group.is_empty() {
            return;
        }
        let fence = held.ok().filter(|_| group.iter().any(|write| write.registration.is_some()));
        let begun = Instant::now();
        let fate = match &self.faults {
            Some(faults) => faults.begin().await,
            None => Fate::Proceeds,
        };
        let committed = if fate == Fate::Fails {
            Err(StoreError::Silent)
        } else {
            let committing = timeout(COMMIT_TIMEOUT, self.try_commit(group, fence.as_ref()));
            committing.await.unwrap_or(Err(StoreError::Silent))
        };
        let committed = committed.and_then(|outcomes| {
            if fate == Fate::LosesItsConfirmation { Err(StoreError::Silent) } else { Ok(outcomes) }
        });
        match &committed {
            Ok(_) => self.meter.commits.observe(begun.elapsed().as_secs_f64()),
            Err(_) => self.meter.failures.with_label_values::<&str>(&[]).inc(),
        }
        let bytes = group.iter().flat_map(|write| &write.changes).map(Change::bytes).sum::<usize>();
        if committed.is_err() {
            self.failing.fetch_max(bytes.clamp(1, PROBE_BYTES_MAX), Ordering::Relaxed);
        } else if self.failing.load(Ordering::Relaxed) <= bytes {
            // A smaller write may fit into the rest of a full disk. An empty one changes nothing.
            self.failing.store(0, Ordering::Relaxed);
        }
        match committed {
            Ok(outcomes) => {
                for (write, outcome) in group.drain(..).zip(outcomes) {
                    // The request may have been cancelled.
                    let _ = write.done.send(outcome);
                }
            }
            Err(error) => {
                tracing::error!(%error, writes = group.len(), "commit failed");
                if !matches!(error, StoreError::Removed(_)) {
                    self.connection = None;
                    if let Some(file) = &mut self.file {
                        file.forget_log();
                    }
                }
                if let (StoreError::Fenced, Some(held)) = (&error, fence) {
                    self.lease.lost(held.number);
                }
                for write in group.drain(..) {
                    let _ = write.done.send(Err(error.again()));
                }
            }
        }
        if let Some(faults) = &self.faults {
            faults.end();
        }
    }

    fn check_file(&self) -> Result<(), StoreError> {
        self.file.as_ref().map_or(Ok(()), LockedFile::check_present)
    }

    async fn try_commit<'a>(
        &mut self,
        group: &'a [Write],
        fence: Option<&Held>,
    ) -> Result<Vec<Result<u64, StoreError>>, StoreError> {
        self.check_file()?;
        if self.connection.is_none() {
            let opened = timeout(CONNECT_TIMEOUT, database::connect(&self.address)).await;
            self.connection = Some(opened.map_err(|_| StoreError::Silent)??);
            if let Some(file) = &mut self.file {
                file.watch_log();
            }
        }
        let Some(connection) = &mut self.connection else { return Err(StoreError::Silent) };
        let probes = group.iter().flat_map(|write| &write.changes).filter_map(|change| match change {
            Change::Probe { bytes } => Some(*bytes),
            _ => None,
        });
        if let (Some(file), Some(bytes)) = (&self.file, probes.max()) {
            file.check_room(bytes).await?;
        }
        begin(connection, fence).await?;
        let of = |write: &'a Write| Changes { changes: &write.changes, at_unix_ms: write.at_unix_ms };
        let writes: Vec<Changes<'a>> = group.iter().map(of).collect();
        match group::apply(connection, &writes, true).await {
            Err(error) if error.belongs_to_the_write() => {}
            applied => {
                let outcomes = applied?;
                command(connection, "COMMIT").await?;
                return Ok(outcomes);
            }
        }
        command(connection, "ROLLBACK").await?;
        begin(connection, fence).await?;
        let mut outcomes = Vec::with_capacity(writes.len());
        for write in &writes {
            command(connection, "SAVEPOINT one_write").await?;
            let applied = group::apply(connection, std::slice::from_ref(write), false).await;
            let outcome = applied.and_then(|outcomes| outcomes.into_iter().next().unwrap_or(Ok(0)));
            if outcome.is_err() {
                command(connection, "ROLLBACK TO SAVEPOINT one_write").await?;
            }
            command(connection, "RELEASE SAVEPOINT one_write").await?;
            outcomes.push(outcome);
        }
        command(connection, "COMMIT").await?;
        Ok(outcomes)
    }
}

/// Begins a transaction during which no predictor can take over this predictor's jobs.
async fn begin(connection: &mut Connection, fence: Option<&Held>) -> Result<(), StoreError> {
    match (connection, fence) {
        (Either::Sqlite(connection), _) => {
            sqlx::query("BEGIN IMMEDIATE").execute(connection).await?;
        }
        (Either::Postgres(connection), None) => {
            sqlx::query("BEGIN").execute(connection).await?;
        }
        (Either::Postgres(connection), Some(held)) => {
            // One message, because every round trip delays a response. The instance is a UUID that this predictor generated.
            let fence =
                format!("BEGIN; SELECT 1 FROM predictor WHERE instance = '{}' FOR KEY SHARE", held.instance);
            let row = sqlx::raw_sql(AssertSqlSafe(fence)).fetch_optional(connection).await?;
            row.ok_or(StoreError::Fenced)?;
        }
    }
    Ok(())
}

async fn command(connection: &mut Connection, command: &'static str) -> Result<(), StoreError> {
    on!(connection, c => sqlx::query(command).execute(&mut *c).await.map(drop))?;
    Ok(())
}

//! The store: writes go through queues to one writer task; reads use two pools of connections, for training and for views.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use evenstep_observability::metrics::prometheus::proto::MetricFamily;
use evenstep_observability::metrics::{Family, collect};
use evenstep_protocol::JobId;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::address::Address;
use crate::change::Change;
use crate::database::{self, Either, Readers, VIEW_MAX, on, scalar};
use crate::error::StoreError;
use crate::file::lock;
use crate::lease::{Lease, Owner, Sharing};
use crate::limits::{PROBE_BYTES_MIN, QUEUE_BYTES_MAX, QUEUE_MAX};
use crate::schema;
use crate::view::View;
use crate::write::faults::Faults;
use crate::write::meter::Meter;
use crate::write::writer::{Queue, Write, Writer};

/// Handle of an open store. Clones share its queues and connections.
#[derive(Debug, Clone)]
pub struct Store {
    urgent: WriteQueue,
    bulk: WriteQueue,
    pub(crate) readers: Readers,
    viewers: Readers,
    pub(crate) lease: Arc<Lease>,
    /// Registration under which writes are decided; `None` if they are valid under any registration.
    registration: Option<u64>,
    /// Size of the largest commit that failed since one succeeded, in bytes; 0 if the latest one succeeded.
    failing: Arc<AtomicUsize>,
    meter: Meter,
    /// Whether a request found the file damaged. It stays so until the predictor starts again.
    damaged: Arc<AtomicBool>,
}

/// A queue of writes, bounded by number and by bytes.
#[derive(Debug, Clone)]
struct WriteQueue {
    writes: mpsc::Sender<Write>,
    room: Arc<Semaphore>,
}

impl WriteQueue {
    fn new() -> (Self, mpsc::Receiver<Write>) {
        let (writes, queue) = mpsc::channel(QUEUE_MAX);
        (Self { writes, room: Arc::new(Semaphore::new(QUEUE_BYTES_MAX)) }, queue)
    }
}

impl Store {
    /// Opens the store, creates it if it does not exist, and upgrades its schema. `sharing` identifies this
    /// predictor to other predictors on the same PostgreSQL database.
    ///
    /// Also returns the handle of the writer task, which ends when the last [`Store`] is dropped and all
    /// writes are done.
    ///
    /// # Errors
    /// If the store cannot be used, its schema is foreign, or another process serves the file.
    pub async fn open(
        address: &Address,
        sharing: Option<Sharing>,
    ) -> Result<(Self, tokio::task::JoinHandle<()>), StoreError> {
        Self::open_with_faults(address, sharing, None).await
    }

    /// Opens the store for a simulation that decides on each commit.
    ///
    /// # Errors
    /// The errors of [`Store::open`].
    pub async fn open_with_faults(
        address: &Address,
        sharing: Option<Sharing>,
        faults: Option<Arc<dyn Faults>>,
    ) -> Result<(Self, tokio::task::JoinHandle<()>), StoreError> {
        let mut file = address.file().map(lock).transpose()?;
        schema::inspect(address).await?;
        let mut connection = database::connect(address).await?;
        schema::update_shared(&mut connection).await?;
        if let Some(file) = &mut file {
            file.watch_log();
        }
        let lease = Arc::new(Lease::new(sharing.zip(database::lease_connections(address))));
        let failing = Arc::new(AtomicUsize::new(0));
        let meter = Meter::new();
        let (urgent, urgent_queue) = WriteQueue::new();
        let (bulk, bulk_queue) = WriteQueue::new();
        let [readers, viewers] = database::readers(address);
        let writer = Writer {
            readers: [readers.clone(), viewers.clone()],
            address: address.clone(),
            connection: Some(connection),
            file,
            lease: lease.clone(),
            failing: failing.clone(),
            meter: meter.clone(),
            faults,
        };
        let writer = tokio::spawn(writer.run(Queue { urgent: urgent_queue, bulk: bulk_queue }));
        let store = Self {
            urgent,
            bulk,
            readers,
            viewers,
            lease,
            registration: None,
            failing,
            meter,
            damaged: Arc::default(),
        };
        store.lease.renew().await?;
        Ok((store, writer))
    }

    /// Number of connections that are reading.
    pub fn reads_in_flight(&self) -> u32 {
        let busy = |pool: &Readers| on!(pool, pool => pool.size() - u32::try_from(pool.num_idle()).unwrap_or(u32::MAX).min(pool.size()));
        busy(&self.readers) + busy(&self.viewers)
    }

    /// Begins a view. It has a connection that training does not use, and a deadline.
    ///
    /// # Errors
    /// [`StoreError::Watched`] if other views use all connections for 5 s, or if the database cannot be reached.
    pub async fn view(&self) -> Result<View, StoreError> {
        self.view_within(VIEW_MAX).await
    }

    /// Begins a view with this time limit.
    pub(crate) async fn view_within(&self, limit: Duration) -> Result<View, StoreError> {
        View::begin(&self.viewers, self.lease.clone(), limit).await
    }

    /// Returns `sqlite` or `postgres`.
    pub fn backend(&self) -> &'static str {
        match &self.readers {
            Either::Sqlite(_) => "sqlite",
            Either::Postgres(_) => "postgres",
        }
    }

    /// Returns this store for decisions made under a registration: writes fail once that registration has
    /// ended.
    pub fn of_registration(&self, number: u64) -> Self {
        Self { registration: Some(number), ..self.clone() }
    }

    /// Makes changes, all or none. Returns once they are durable, with the number of new rows.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if the queue is full, else the cause of the failure. Nothing was changed then,
    /// unless the database stopped responding during the transaction ([`StoreError::Silent`]).
    pub async fn write(&self, changes: Vec<Change>, at_unix_ms: i64) -> Result<u64, StoreError> {
        let line = if changes.iter().any(Change::can_wait) { &self.bulk } else { &self.urgent };
        let bytes = changes.iter().map(Change::bytes).sum::<usize>().min(QUEUE_BYTES_MAX);
        let room = line.room.clone().try_acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX));
        let room = room.map_err(|_| StoreError::Busy)?;
        let (done, outcome) = oneshot::channel();
        let write = Write { changes, at_unix_ms, registration: self.registration, bytes, done, _room: room };
        line.writes.try_send(write).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::Busy,
            mpsc::error::TrySendError::Closed(_) => StoreError::Closed,
        })?;
        outcome.await.map_err(|_| StoreError::Closed)?
    }

    /// Checks that the store can be written and read, and that this predictor may serve requests. After a
    /// failure it makes a probe write that uses the same path as other writes and needs as much space as the one that
    /// failed, so that a recovery is noticed, but not before.
    ///
    /// # Errors
    /// See [`Store::write`].
    pub async fn check(&self) -> Result<(), StoreError> {
        if self.damaged.load(Ordering::Relaxed) {
            return Err(StoreError::Damaged("a request could not read it".to_owned()));
        }
        let registration = self.registration();
        let failed = self.failing.load(Ordering::Relaxed);
        let ailing = registration.is_err() || failed > 0;
        let bytes = if failed > 0 { failed.max(PROBE_BYTES_MIN) } else { 0 };
        let probe = if ailing { vec![Change::Probe { bytes }] } else { Vec::new() };
        self.write(probe, 0).await?;
        scalar!(&self.readers, i64, "SELECT count(*) FROM device_model")?;
        // Returned last: an expired lease is less informative than the error that kept it from being renewed.
        registration.map(drop)
    }

    /// Makes [`Store::check`] fail until the predictor starts again, because a request found the file damaged.
    pub fn set_damaged(&self) {
        if !self.damaged.swap(true, Ordering::Relaxed) {
            tracing::error!("the file of the store is damaged; stop the predictor and restore a backup");
        }
    }

    /// Returns the number of this predictor's registration while its lease is valid.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] if the lease has expired.
    pub fn registration(&self) -> Result<u64, StoreError> {
        self.lease.held(|held| held.number)
    }

    /// Whether other predictors may use the same database.
    pub fn is_shared(&self) -> bool {
        self.lease.is_shared()
    }

    /// Claims a job that has no owner, and returns the job's owner; `None` if the job does not exist.
    ///
    /// # Errors
    /// If the database cannot be read, or this predictor's own lease has expired.
    pub async fn claim(&self, job_id: &JobId) -> Result<Option<Owner>, StoreError> {
        if self.is_shared() {
            return self.lease.claim(job_id).await;
        }
        let sql = "SELECT job_id FROM job WHERE job_id = $1";
        let found = scalar!(&self.readers, String, sql, job_id.as_str())?;
        found.map(|_| self.registration().map(Owner::Us)).transpose()
    }

    /// Renews the lease for as long as the future is polled.
    pub async fn keep_lease(&self) {
        self.lease.keep().await;
    }

    /// Releases all jobs, so that another predictor can claim them at once. This predictor serves nothing
    /// afterwards.
    ///
    /// # Errors
    /// If the database is unreachable; the lease then expires.
    pub async fn resign(&self) -> Result<(), StoreError> {
        self.lease.resign().await
    }

    /// Metrics of commits and of the write queues.
    pub fn families(&self) -> Vec<MetricFamily> {
        let mut writes = Family::gauge("evenstep_store_queue_writes", "Writes waiting in the queue.");
        let mut bytes = Family::gauge("evenstep_store_queue_bytes", "Bytes waiting in the queue.");
        for (queue, line) in [("urgent", &self.urgent), ("bulk", &self.bulk)] {
            writes.add([("queue", queue)], (QUEUE_MAX - line.writes.capacity()) as f64);
            bytes.add([("queue", queue)], (QUEUE_BYTES_MAX - line.room.available_permits()) as f64);
        }
        let mut families: Vec<MetricFamily> = [writes.done(), bytes.done()].into_iter().flatten().collect();
        collect(&mut families, &self.meter.commits, []);
        collect(&mut families, &self.meter.failures, []);
        families
    }
}

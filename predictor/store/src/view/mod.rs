//! Reads for views: pages, charts, reports, and the statistics of jobs whose state is not in memory.
//!
//! A [`View`] has a connection of a separate pool, so that training never waits for a viewer, and a deadline at which
//! the database interrupts it, so that no viewer occupies a processor for long. The reads that training needs are in
//! `read`.

pub(crate) mod disk;

pub(crate) mod history;

mod jobs;

pub(crate) mod nodes;

pub(crate) mod speeds;

pub(crate) mod summaries;

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenstep_protocol::JobId;
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres, Sqlite, SqliteConnection};

use crate::database::{Either, Readers, rows};
use crate::error::StoreError;
use crate::lease::Lease;
use crate::read::{SEGMENTS, SegmentRow, StoredSegment};

pub use disk::DiskUse;
pub(crate) use history::ALLOCATION;
pub use history::{EveryNth, Measured};
pub use summaries::{StoredSummary, unknown_reason};

/// Number of SQLite's steps between two looks at the time: about 10 µs.
const LOOK_STEPS: i32 = 1000;

/// The reads of one view. They must end before its deadline.
#[derive(Debug)]
pub struct View {
    connection: Either<PoolConnection<Sqlite>, PoolConnection<Postgres>>,
    due: Instant,
    lease: Arc<Lease>,
}

impl View {
    /// Waits for a connection. Then the time limit begins.
    pub(crate) async fn begin(
        viewers: &Readers,
        lease: Arc<Lease>,
        limit: Duration,
    ) -> Result<Self, StoreError> {
        let due;
        let connection = match viewers {
            Either::Sqlite(pool) => {
                let mut connection = pool.acquire().await.map_err(busy)?;
                due = Instant::now() + limit;
                // Replaces the deadline of the view that had the connection before.
                connection
                    .lock_handle()
                    .await?
                    .set_progress_handler(LOOK_STEPS, move || Instant::now() < due);
                Either::Sqlite(connection)
            }
            Either::Postgres(pool) => {
                let connection = pool.acquire().await.map_err(busy)?;
                due = Instant::now() + limit;
                Either::Postgres(connection)
            }
        };
        Ok(Self { connection, due, lease })
    }

    /// Returns the segments of a job in order of positions, without the first one.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn segments(&mut self, job_id: &JobId) -> Result<Vec<StoredSegment>, StoreError> {
        let rows = rows!(self.connection()?, SegmentRow, SEGMENTS, job_id.as_str())?;
        Ok(rows.iter().map(SegmentRow::segment).collect())
    }

    /// The connection, for the next query. The server of PostgreSQL also limits each query.
    ///
    /// # Errors
    /// [`StoreError::Late`] after the deadline.
    fn connection(&mut self) -> Result<Either<&mut SqliteConnection, &mut PgConnection>, StoreError> {
        if Instant::now() >= self.due {
            return Err(StoreError::Late);
        }
        Ok(match &mut self.connection {
            Either::Sqlite(connection) => Either::Sqlite(connection),
            Either::Postgres(connection) => Either::Postgres(connection),
        })
    }
}

/// The error of a view that got no connection.
fn busy(error: sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::PoolTimedOut => StoreError::Watched,
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tempfile::TempDir;

    use super::*;
    use crate::database::scalar;
    use crate::error::Fault;
    use crate::store::Store;

    /// A query without end.
    const ENDLESS: &str =
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";

    async fn store() -> (TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("sqlite://{}/evenstep.db", folder.path().display()).parse().unwrap();
        let (store, _writer) = Store::open(&address, None).await.unwrap();
        (folder, store)
    }

    #[tokio::test]
    async fn the_database_interrupts_a_view_at_its_deadline_and_serves_the_next_one() {
        let (_folder, store) = store().await;
        for _ in 0..8 {
            let mut view = store.view_within(Duration::from_millis(20)).await.unwrap();
            let error: StoreError = match view.connection() {
                Ok(connection) => scalar!(connection, i64, ENDLESS).unwrap_err().into(),
                Err(late) => late,
            };
            assert_eq!(error.fault(), Some(Fault::Slow), "{error}");
            assert!(matches!(view.owners().await, Err(StoreError::Late)), "no further query begins");
            drop(view);
            assert_eq!(store.view().await.unwrap().owners().await.unwrap(), []);
        }
    }

    /// While viewers hold all connections for views, training reads, and a further viewer waits for at most some seconds.
    #[tokio::test]
    async fn training_does_not_wait_for_viewers() {
        let (_folder, store) = store().await;
        let mut viewers = Vec::new();
        for _ in 0..crate::database::VIEWERS {
            viewers.push(store.view().await.unwrap());
        }
        assert!(store.view().now_or_never().is_none(), "a further viewer waits");
        assert!(matches!(busy(sqlx::Error::PoolTimedOut), StoreError::Watched));
        assert_eq!(store.job_count().await.unwrap(), 0);
        store.check().await.unwrap();
        viewers.pop();
        store.view().await.unwrap();
    }

    /// A viewer that leaves during a query gives its connection back by the deadline, although no one waits for its result.
    #[tokio::test]
    async fn the_query_of_a_viewer_that_left_ends() {
        let (_folder, store) = store().await;
        for _ in 0..2 * crate::database::VIEWERS {
            let mut view = store.view_within(Duration::from_millis(50)).await.unwrap();
            let query =
                async move { Ok::<_, StoreError>(scalar!(view.connection()?, i64, ENDLESS).map(drop)?) };
            drop(tokio::time::timeout(Duration::from_millis(5), query).await);
        }
        assert_eq!(store.view().await.unwrap().owners().await.unwrap(), []);
    }
}

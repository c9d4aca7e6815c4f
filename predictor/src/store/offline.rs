//! Reading a store without serving it: nothing is created, nothing is changed.

use evenstep_protocol::JobId;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::read::{StoredReport, report};
use super::{BUSY_TIMEOUT, StoreError, sqlite_file};

/// The reports of a job by iteration, the oldest first; at most one more than `limit`, to tell that there are more.
///
/// # Errors
/// Where the store cannot be read or holds what cannot be understood.
pub async fn read_reports(
    address: &str,
    job_id: &JobId,
    limit: usize,
) -> Result<Vec<StoredReport>, StoreError> {
    let options = SqliteConnectOptions::new()
        .filename(sqlite_file(address)?)
        .create_if_missing(false)
        .read_only(true)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging();
    let mut connection = options.connect().await?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let rows = sqlx::query("SELECT * FROM report WHERE job_id = ?1 ORDER BY iteration, worker LIMIT ?2")
        .bind(job_id.as_str())
        .bind(limit)
        .fetch_all(&mut connection)
        .await?;
    let reports = rows.iter().map(report).collect();
    connection.close().await?;
    reports
}

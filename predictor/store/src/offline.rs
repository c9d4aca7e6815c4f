//! Reading a store without serving it: nothing is created, nothing is changed.

use evenstep_protocol::{JobId, WorkerReport};
use sqlx::Connection as _;

use crate::database::{connect_to_read, on, rows};
use crate::read::{ReportRow, StoredReport};
use crate::{Address, StoreError, schema};

/// The reports of a job by iteration, the oldest first; at most one more than `limit`, to tell that there are more.
///
/// # Errors
/// Where the store cannot be read or holds what cannot be understood.
pub async fn read_reports(
    address: &str,
    job_id: &JobId,
    limit: usize,
) -> Result<Vec<StoredReport>, StoreError> {
    let mut connection = connect_to_read(&address.parse::<Address>()?).await?;
    schema::check(&mut connection).await?;
    let reports = rows!(
        &mut connection,
        ReportRow,
        "SELECT *, CAST(drivers AS TEXT) AS drivers_text FROM report WHERE job_id = $1 ORDER BY iteration, worker LIMIT $2",
        job_id.as_str(),
        i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1),
    )?;
    on!(connection, c => c.close().await)?;
    reports.into_iter().map(WorkerReport::try_from).collect()
}

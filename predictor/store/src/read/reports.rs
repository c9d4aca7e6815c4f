//! Reports as they are stored.

use evenstep_protocol::{JobId, WorkerReport};
use sqlx::Connection as _;

use super::report_row::ReportRow;
use crate::address::Address;
use crate::database::{connect_to_read, on, rows};
use crate::encode::integer;
use crate::error::StoreError;
use crate::schema;
use crate::store::Store;

/// A report as it was stored.
pub type StoredReport = WorkerReport;

impl Store {
    /// Reports of the last `iterations` iterations that were reported, the oldest first.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn recent_reports(
        &self,
        job_id: &JobId,
        iterations: u64,
    ) -> Result<Vec<StoredReport>, StoreError> {
        let reports = rows!(
            &self.readers,
            ReportRow,
            "SELECT *, CAST(drivers AS TEXT) AS drivers_text FROM report
             WHERE job_id = $1 AND iteration > (SELECT MAX(iteration) FROM report WHERE job_id = $1) - $2
             ORDER BY iteration, worker",
            job_id.as_str(),
            integer(iterations),
        )?;
        reports.into_iter().map(WorkerReport::try_from).collect()
    }

    /// Reports from iteration `from` on, at most `limit` iterations of them.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn reports_from(
        &self,
        job_id: &JobId,
        from: u64,
        limit: u64,
    ) -> Result<Vec<StoredReport>, StoreError> {
        let reports = rows!(
            &self.readers,
            ReportRow,
            "SELECT *, CAST(drivers AS TEXT) AS drivers_text FROM report
             WHERE job_id = $1 AND iteration >= $2 AND iteration < $3 ORDER BY iteration, worker",
            job_id.as_str(),
            integer(from),
            integer(from.saturating_add(limit)),
        )?;
        reports.into_iter().map(WorkerReport::try_from).collect()
    }
}

/// Reads the reports of a job from a store that is not served, and changes nothing: by iteration, the oldest first; at most one more than `limit`, to tell that there are more.
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

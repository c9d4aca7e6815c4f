//! Reading reports.

use std::ops::Range;

use evenstep_protocol::{JobId, WorkerId, WorkerReport};
use futures_util::TryStreamExt as _;
use sqlx::Connection as _;

use super::report_row::ReportRow;
use super::segments::{SEGMENTS, SegmentRow, StoredSegment};
use crate::address::Address;
use crate::database::{connect_to_read, on, rows};
use crate::encode::{id, integer};
use crate::error::StoreError;
use crate::from_row::from_row;
use crate::schema;
use crate::store::Store;

/// A stored report.
pub type StoredReport = WorkerReport;

struct ArrivedRow {
    at_unix_ms: i64,
    report: ReportRow,
}

from_row!(ArrivedRow { at_unix_ms; whole: report });

/// The first reports of a job.
pub(crate) const FIRST_REPORTS: &str = "SELECT *, CAST(drivers AS TEXT) AS drivers_text FROM report
    WHERE job_id = $1 ORDER BY iteration, worker LIMIT $2";

/// Number of iterations in [`WORKER_REPORTS`].
const ITERATIONS_AT_ONCE: u64 = 32;

/// The reports of one worker. Each iteration is looked up in the primary key: a range would read the reports of all workers,
/// and so would a join in PostgreSQL without statistics. Without the range of these iterations, it would then read the whole job.
pub(crate) const WORKER_REPORTS: &str = "SELECT *, CAST(drivers AS TEXT) AS drivers_text FROM report
    WHERE job_id = $1 AND worker = $2 AND iteration IN ($3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
        $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34)
        AND iteration >= $3 AND iteration <= $34
    ORDER BY iteration";

/// The reports of an iteration and of later ones. In the order of the primary key, so that rows are read and decoded at once.
pub(crate) const RECENT_ARRIVALS: &str = "SELECT *, CAST(drivers AS TEXT) AS drivers_text FROM report
    WHERE job_id = $1 AND iteration >= $2
      AND iteration <= (SELECT MAX(iteration) FROM report WHERE job_id = $1)
    ORDER BY iteration, worker";

/// For each worker, the reported ones of 64 iterations from $2 on, the first as the lowest bit, and the latest time of storage.
pub(crate) const REPORTED: &str =
    "SELECT worker, CAST(SUM(CAST(1 AS BIGINT) << CAST(iteration - $2 AS INTEGER)) AS BIGINT), MAX(at_unix_ms) FROM report
    WHERE job_id = $1 AND iteration >= $2 AND iteration < $2 + 64 GROUP BY worker ORDER BY worker";

/// The first and the last of the latest reported iterations, until they have more reports than a number. One iteration is
/// counted after the other: for an offset, PostgreSQL without statistics would sort all reports.
pub(crate) const RECENT_ITERATIONS: &str = "WITH RECURSIVE recent (iteration, newer) AS (
        SELECT MAX(iteration), CAST(0 AS BIGINT) FROM report WHERE job_id = $1
        UNION ALL
        SELECT (SELECT MAX(iteration) FROM report WHERE job_id = $1 AND iteration < recent.iteration),
               newer + (SELECT count(*) FROM report WHERE job_id = $1 AND iteration = recent.iteration)
        FROM recent
        WHERE newer <= $2 AND iteration > (SELECT MAX(iteration) FROM report WHERE job_id = $1) - $3)
    SELECT MIN(iteration), MAX(iteration) FROM recent WHERE newer <= $2";

impl Store {
    /// Returns the reports of a worker for a range of iterations, in order of iteration.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn worker_reports(
        &self,
        job_id: &JobId,
        worker: &WorkerId,
        iterations: Range<u64>,
    ) -> Result<Vec<StoredReport>, StoreError> {
        let mut reports = Vec::new();
        for first in iterations.clone().step_by(ITERATIONS_AT_ONCE as usize) {
            let rows = on!(&self.readers, c => {
                let query = sqlx::query_as::<_, ReportRow>(WORKER_REPORTS).bind(job_id.as_str()).bind(worker.as_str());
                let at = (0..ITERATIONS_AT_ONCE).map(|at| integer(first.saturating_add(at)));
                at.fold(query, sqlx::query::QueryAs::bind).fetch_all(c).await
            })?;
            for row in rows {
                reports.push(WorkerReport::try_from(row)?);
            }
        }
        reports.retain(|report| iterations.contains(&report.iteration));
        Ok(reports)
    }

    /// Returns the latest reported iterations, the first and the last, of those in the last `iterations`: as many as have more
    /// than `reports` reports, or all. `None` if the job has no reports.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn recent_iterations(
        &self,
        job_id: &JobId,
        reports: u64,
        iterations: u64,
    ) -> Result<Option<(u64, u64)>, StoreError> {
        let found = rows!(
            &self.readers,
            (Option<i64>, Option<i64>),
            RECENT_ITERATIONS,
            job_id.as_str(),
            integer(reports),
            integer(iterations),
        )?;
        let Some((Some(first), Some(last))) = found.first().copied() else { return Ok(None) };
        let [first, last] = [first, last].map(i64::cast_unsigned);
        Ok(Some((first.max(last.saturating_add(1).saturating_sub(iterations)), last)))
    }

    /// Returns the reports of iteration `from` and of later ones, in order of arrival, oldest first, with the times at which
    /// they were stored. Reports with the same time form one group, in order of iteration and worker.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn recent_arrivals(
        &self,
        job_id: &JobId,
        from: u64,
    ) -> Result<Vec<(i64, Vec<StoredReport>)>, StoreError> {
        let mut reports = on!(&self.readers, c => {
            let query = sqlx::query_as::<_, ArrivedRow>(RECENT_ARRIVALS).bind(job_id.as_str()).bind(integer(from));
            let mut rows = query.fetch(c);
            let mut reports = Vec::new();
            while let Some(ArrivedRow { at_unix_ms, report }) = rows.try_next().await? {
                reports.push((at_unix_ms, StoredReport::try_from(report)?));
            }
            reports
        });
        // Stable: reports with the same time stay in order.
        reports.sort_by_key(|(at_unix_ms, _)| *at_unix_ms);
        let mut groups: Vec<(i64, Vec<StoredReport>)> = Vec::new();
        for (at_unix_ms, report) in reports {
            match groups.last_mut() {
                Some((at, group)) if *at == at_unix_ms => group.push(report),
                _ => groups.push((at_unix_ms, vec![report])),
            }
        }
        Ok(groups)
    }

    /// Returns the reported ones of 64 iterations, from iteration `from` on, for each worker with one: the first as the lowest
    /// bit. Also returns the time at which the latest of its reports was stored.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn reported(&self, job_id: &JobId, from: u64) -> Result<Vec<(WorkerId, u64, i64)>, StoreError> {
        let rows = rows!(&self.readers, (String, i64, i64), REPORTED, job_id.as_str(), integer(from))?;
        let reported = |(worker, bits, at_unix_ms): (String, i64, i64)| {
            Ok((id(worker)?, bits.cast_unsigned(), at_unix_ms))
        };
        rows.into_iter().map(reported).collect()
    }
}

/// Reads the reports of a job from a store that is not served, without changing it, in order of iteration and
/// worker. Returns up to `limit + 1` reports, so that the caller can detect that there are more than `limit`, and the segments of
/// the job's positions.
///
/// # Errors
/// If the store cannot be read or contains an invalid value.
pub async fn read_reports(
    address: &str,
    job_id: &JobId,
    limit: usize,
) -> Result<(Vec<StoredReport>, Vec<StoredSegment>), StoreError> {
    let mut connection = connect_to_read(&address.parse::<Address>()?).await?;
    schema::check(&mut connection).await?;
    let reports = rows!(
        &mut connection,
        ReportRow,
        FIRST_REPORTS,
        job_id.as_str(),
        i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1),
    )?;
    let segments = rows!(&mut connection, SegmentRow, SEGMENTS, job_id.as_str());
    let segments = match segments {
        Err(sqlx::Error::Database(error)) if is_missing_table(&*error) => Vec::new(),
        read => read?,
    };
    on!(connection, c => c.close().await)?;
    let reports: Vec<StoredReport> =
        reports.into_iter().map(WorkerReport::try_from).collect::<Result<_, StoreError>>()?;
    Ok((reports, segments.iter().map(SegmentRow::segment).collect()))
}

/// Whether a query names a table that a store of an earlier version does not have.
fn is_missing_table(error: &dyn sqlx::error::DatabaseError) -> bool {
    error.code().is_some_and(|code| code == "42P01") || error.message().starts_with("no such table")
}

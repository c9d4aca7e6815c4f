//! Allocations and reports of successive iterations.

use evenstep_protocol::JobId;

use super::View;
use crate::database::rows;
use crate::encode::{Json, integer};
use crate::error::StoreError;
use crate::read::{ANSWERS, ReportRow, StoredAllocation, StoredReport, stored};

/// The reports of a range of iterations.
pub(crate) const REPORTS: &str = "SELECT *, CAST(drivers AS TEXT) AS drivers_text FROM report
    WHERE job_id = $1 AND iteration >= $2 AND iteration < $3 ORDER BY iteration, worker";

impl View {
    /// Returns the allocations of up to `limit` iterations from iteration `from`, each from its latest
    /// generation.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn answers(
        &mut self,
        job_id: &JobId,
        from: u64,
        limit: u64,
    ) -> Result<Vec<StoredAllocation>, StoreError> {
        let end = integer(from.saturating_add(limit));
        let answers =
            rows!(self.connection()?, (i64, i64, Json), ANSWERS, job_id.as_str(), integer(from), end)?;
        Ok(answers.into_iter().map(stored).collect())
    }

    /// Returns the reports of up to `limit` iterations from iteration `from`.
    ///
    /// # Errors
    /// If the database cannot be read or contains an invalid value.
    pub async fn reports_from(
        &mut self,
        job_id: &JobId,
        from: u64,
        limit: u64,
    ) -> Result<Vec<StoredReport>, StoreError> {
        let end = integer(from.saturating_add(limit));
        let reports = rows!(self.connection()?, ReportRow, REPORTS, job_id.as_str(), integer(from), end)?;
        reports.into_iter().map(StoredReport::try_from).collect()
    }
}

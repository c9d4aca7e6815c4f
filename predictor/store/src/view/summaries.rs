//! Summaries of all jobs, without loading any.

use std::collections::BTreeMap;

use evenstep_protocol::{Decision, JobId, JobSpec};

use super::View;
use crate::database::{Either, rows, scalar};
use crate::encode::{from_json, id};
use crate::error::StoreError;
use crate::from_row::from_row;
use crate::read::{PAST, PASTS, PastRow, StoredPast};

/// Summary of a stored job.
#[derive(Debug)]
pub struct StoredSummary {
    /// The job.
    pub job_id: JobId,
    /// The job options.
    pub spec: JobSpec,
    /// Generation.
    pub generation: u64,
    /// Number of live workers.
    pub live_workers: u64,
    /// The first iteration without an allocation.
    pub next_iteration: u64,
    /// Decision of the last allocation.
    pub last_decision: Option<Decision>,
    /// Times of joins, departures and reports.
    pub past: StoredPast,
    /// Totals of its iterations (JSON), see [`crate::Change::Totals`]; `None` if none are stored.
    pub totals: Option<String>,
}

struct SummaryRow {
    job_id: String,
    spec: String,
    generation: i64,
    kept_from: i64,
    live_workers: i64,
    last_iteration: Option<i64>,
    decision: Option<String>,
    totals: Option<String>,
}

from_row!(SummaryRow { job_id, spec, generation, kept_from, live_workers, last_iteration, decision, totals });

/// The summaries of all jobs, with the expression for the decision in an allocation. Only the database reads the allocations, which
/// are megabytes for thousands of workers.
macro_rules! summaries {
    ($decision:literal) => {
        concat!(
            "SELECT job_id, spec, generation, kept_from, totals,
                 (SELECT count(*) FROM worker WHERE worker.job_id = job.job_id AND state = 'live') AS live_workers,
                 (SELECT max(iteration) FROM allocation WHERE allocation.job_id = job.job_id) AS last_iteration,
                 (SELECT ",
            $decision,
            " FROM allocation WHERE allocation.job_id = job.job_id
                  ORDER BY iteration DESC, generation DESC LIMIT 1) AS decision
             FROM job ORDER BY job_id"
        )
    };
}

pub(crate) const SUMMARIES_SQLITE: &str = summaries!("json_extract(answer, '$.decision')");
pub(crate) const SUMMARIES_POSTGRES: &str = summaries!("answer::json ->> 'decision'");

impl View {
    /// Returns the summary of every job, sorted by id.
    ///
    /// # Errors
    /// If the database cannot be read or contains an invalid value.
    pub async fn job_summaries(&mut self) -> Result<Vec<StoredSummary>, StoreError> {
        let rows: Vec<SummaryRow> = match self.connection()? {
            Either::Sqlite(connection) => sqlx::query_as(SUMMARIES_SQLITE).fetch_all(connection).await?,
            Either::Postgres(connection) => sqlx::query_as(SUMMARIES_POSTGRES).fetch_all(connection).await?,
        };
        let pasts = rows!(self.connection()?, PastRow, PASTS)?;
        let mut pasts =
            pasts.into_iter().map(PastRow::read).collect::<Result<BTreeMap<_, _>, StoreError>>()?;
        let summary = |row: SummaryRow| {
            let next_iteration = row.last_iteration.map_or(0, |last| last.cast_unsigned() + 1);
            Ok(StoredSummary {
                // A job that was created between the two queries has no past.
                past: pasts.remove(&row.job_id).unwrap_or_default(),
                job_id: id(row.job_id)?,
                spec: from_json(&row.spec, "job")?,
                generation: row.generation.cast_unsigned(),
                live_workers: row.live_workers.cast_unsigned(),
                next_iteration: next_iteration.max(row.kept_from.cast_unsigned()),
                totals: row.totals,
                last_decision: row.decision.map(|decision| from_json(&decision, "decision")).transpose()?,
            })
        };
        rows.into_iter().map(summary).collect()
    }

    /// Returns the past of a job. It is empty if the job does not exist.
    ///
    /// # Errors
    /// See [`View::job_summaries`].
    pub async fn past(&mut self, job_id: &JobId) -> Result<StoredPast, StoreError> {
        let past = rows!(self.connection()?, PastRow, PAST, job_id.as_str())?;
        Ok(past.into_iter().next().map(PastRow::read).transpose()?.map(|(_, past)| past).unwrap_or_default())
    }

    /// Returns the stored totals of a job (JSON); `None` if none are stored.
    ///
    /// # Errors
    /// See [`View::job_summaries`].
    pub async fn totals(&mut self, job_id: &JobId) -> Result<Option<String>, StoreError> {
        let sql = "SELECT totals FROM job WHERE job_id = $1";
        Ok(scalar!(self.connection()?, Option<String>, sql, job_id.as_str())?.flatten())
    }
}

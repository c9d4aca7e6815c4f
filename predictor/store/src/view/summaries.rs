//! Summaries of all jobs, without loading any.

use std::collections::BTreeMap;

use evenstep_protocol::{Decision, JobId, JobSpec};

use super::View;
use crate::database::{Either, rows, scalar};
use crate::encode::{Json, count, id, job_spec};
use crate::error::StoreError;
use crate::from_row::from_row;
use crate::read::{ALL_SEGMENTS, PAST, PASTS, PastRow, SegmentRow, StoredPast, StoredSegment};

/// Summary of a stored job.
#[derive(Debug)]
pub struct StoredSummary {
    /// The job.
    pub job_id: JobId,
    /// The job options, if they can be read.
    pub spec: Option<JobSpec>,
    /// Why this version cannot read or cannot plan the job.
    pub unreadable: Option<String>,
    /// Generation.
    pub generation: u64,
    /// Number of live workers.
    pub live_workers: u64,
    /// The segments of its positions, in order, without the first one.
    pub segments: Vec<StoredSegment>,
    /// The first position without an allocation.
    pub next_iteration: u64,
    /// Decision of the last allocation.
    pub last_decision: Option<Decision>,
    /// Times of joins, departures and reports.
    pub past: StoredPast,
    /// Totals of its iterations (JSON), see [`crate::Change::Totals`]; `None` if none are stored.
    pub totals: Option<String>,
}

/// The reason why a job with these unknown options is not planned; `None` without options.
pub fn unknown_reason(options: &[String]) -> Option<String> {
    let named = options.join(", ");
    (!options.is_empty())
        .then(|| format!("this version does not know the job options {named}; upgrade this predictor"))
}

struct SummaryRow {
    job_id: String,
    spec: Json,
    generation: i64,
    kept_from: i64,
    live_workers: i64,
    last_iteration: Option<i64>,
    decision: Option<Json>,
    totals: Option<Json>,
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

pub(crate) const SUMMARIES_SQLITE: &str =
    summaries!("CASE WHEN json_valid(answer) THEN json_extract(answer, '$.decision') END");
pub(crate) const SUMMARIES_POSTGRES: &str = summaries!("answer::json ->> 'decision'");
/// Without decisions: before version 16, PostgreSQL cannot tell that an allocation is no JSON except by an error.
const SUMMARIES_POSTGRES_DAMAGED: &str = summaries!("NULL::text");

impl View {
    /// Returns the summary of every job, sorted by id.
    ///
    /// # Errors
    /// If the database cannot be read or contains an invalid value.
    pub async fn job_summaries(&mut self) -> Result<Vec<StoredSummary>, StoreError> {
        let rows: Vec<SummaryRow> = match self.connection()? {
            Either::Sqlite(connection) => sqlx::query_as(SUMMARIES_SQLITE).fetch_all(connection).await?,
            Either::Postgres(connection) => {
                match sqlx::query_as(SUMMARIES_POSTGRES).fetch_all(&mut *connection).await.map_err(Into::into)
                {
                    Err(error) if StoreError::belongs_to_the_write(&error) => {
                        sqlx::query_as(SUMMARIES_POSTGRES_DAMAGED).fetch_all(connection).await?
                    }
                    rows => rows?,
                }
            }
        };
        let pasts = rows!(self.connection()?, PastRow, PASTS)?;
        let mut pasts: BTreeMap<_, _> = pasts.into_iter().map(PastRow::read).collect();
        let mut segments: BTreeMap<String, Vec<StoredSegment>> = BTreeMap::new();
        for row in rows!(self.connection()?, SegmentRow, ALL_SEGMENTS)? {
            let segment = row.segment();
            segments.entry(row.job_id).or_default().push(segment);
        }
        let summary = |row: SummaryRow| {
            let next_iteration = row.last_iteration.map_or(0, |last| last.cast_unsigned().saturating_add(1));
            let read = || {
                let (spec, unknown_options) = job_spec(&row.spec)?;
                Ok::<_, StoreError>((
                    unknown_reason(&unknown_options),
                    spec,
                    count(row.generation, "generation")?,
                    count(row.kept_from, "kept_from")?,
                ))
            };
            let (unreadable, spec, generation, kept_from) = match read() {
                Ok((reason, spec, generation, kept_from)) => (reason, Some(spec), generation, kept_from),
                Err(error) => (Some(error.to_string()), None, 0, 0),
            };
            // A row whose id is no id cannot be requested or deleted; `store check` finds it.
            Some(StoredSummary {
                // A job that was created between the two queries has no past.
                past: pasts.remove(&row.job_id).unwrap_or_default(),
                segments: segments.remove(&row.job_id).unwrap_or_default(),
                job_id: id(row.job_id).ok()?,
                spec,
                unreadable,
                generation,
                live_workers: row.live_workers.cast_unsigned(),
                next_iteration: next_iteration.max(kept_from),
                totals: row.totals.map(Json::into_text),
                last_decision: row.decision.and_then(|decision| decision.read("decision").ok()),
            })
        };
        Ok(rows.into_iter().filter_map(summary).collect())
    }

    /// Returns the past of a job. It is empty if the job does not exist.
    ///
    /// # Errors
    /// See [`View::job_summaries`].
    pub async fn past(&mut self, job_id: &JobId) -> Result<StoredPast, StoreError> {
        let past = rows!(self.connection()?, PastRow, PAST, job_id.as_str())?;
        Ok(past.into_iter().next().map(|row| row.read().1).unwrap_or_default())
    }

    /// Returns the stored totals of a job (JSON); `None` if none are stored.
    ///
    /// # Errors
    /// See [`View::job_summaries`].
    pub async fn totals(&mut self, job_id: &JobId) -> Result<Option<String>, StoreError> {
        let sql = "SELECT totals FROM job WHERE job_id = $1";
        let totals = scalar!(self.connection()?, Option<Json>, sql, job_id.as_str())?.flatten();
        Ok(totals.map(Json::into_text))
    }
}

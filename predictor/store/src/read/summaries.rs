//! Summaries of all jobs, without loading any.

use std::collections::BTreeMap;

use evenstep_protocol::{Decision, JobId, JobSpec, WorkerId};

use crate::database::{Either, rows};
use crate::encode::{from_json, id, integer};
use crate::error::StoreError;
use crate::from_row::from_row;
use crate::store::Store;

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
}

/// Times of joins, departures and reports of a job. Times are in milliseconds since 1970.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredPast {
    /// Time at which the job was created.
    pub created_unix_ms: i64,
    /// Number of workers that ever joined.
    pub joined: u64,
    /// Time of the latest join.
    pub joined_unix_ms: Option<i64>,
    /// Time of the latest leave.
    pub left_unix_ms: Option<i64>,
    /// The worker whose lease expired last, and when.
    pub expired: Option<(WorkerId, i64)>,
    /// The latest reported iteration, and the time of its latest report.
    pub reported: Option<(u64, i64)>,
}

/// A change of a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent {
    /// Its time, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// `joined`, `left`, `expired`, `out_of_memory` or `override`.
    pub kind: String,
    /// The worker.
    pub worker: WorkerId,
}

struct PastRow {
    job_id: String,
    created_unix_ms: i64,
    joined: i64,
    joined_unix_ms: Option<i64>,
    left_unix_ms: Option<i64>,
    expired_unix_ms: Option<i64>,
    expired: Option<String>,
    iteration: Option<i64>,
    reported_unix_ms: Option<i64>,
}

from_row!(PastRow {
    job_id,
    created_unix_ms,
    joined,
    joined_unix_ms,
    left_unix_ms,
    expired_unix_ms,
    expired,
    iteration,
    reported_unix_ms
});

impl PastRow {
    fn read(self) -> Result<(String, StoredPast), StoreError> {
        let expired = self.expired.map(id).transpose()?.zip(self.expired_unix_ms);
        let iteration = self.iteration.map(i64::cast_unsigned);
        let past = StoredPast {
            created_unix_ms: self.created_unix_ms,
            joined: self.joined.cast_unsigned(),
            joined_unix_ms: self.joined_unix_ms,
            left_unix_ms: self.left_unix_ms,
            expired,
            reported: iteration.zip(self.reported_unix_ms),
        };
        Ok((self.job_id, past))
    }
}

/// The query for the past of jobs, with a condition.
macro_rules! pasts {
    ($condition:literal) => {
        concat!(
            "SELECT job_id, created_unix_ms,
                 (SELECT count(*) FROM worker WHERE worker.job_id = job.job_id) AS joined,
                 (SELECT max(at_unix_ms) FROM event WHERE event.job_id = job.job_id AND kind = 'joined') AS joined_unix_ms,
                 (SELECT max(at_unix_ms) FROM event WHERE event.job_id = job.job_id AND kind = 'left') AS left_unix_ms,
                 (SELECT max(at_unix_ms) FROM event WHERE event.job_id = job.job_id AND kind = 'expired') AS expired_unix_ms,
                 (SELECT worker FROM event WHERE event.job_id = job.job_id AND kind = 'expired' ORDER BY id DESC LIMIT 1) AS expired,
                 (SELECT max(iteration) FROM report WHERE report.job_id = job.job_id) AS iteration,
                 (SELECT max(at_unix_ms) FROM report WHERE report.job_id = job.job_id
                  AND iteration = (SELECT max(iteration) FROM report AS newest WHERE newest.job_id = job.job_id)) AS reported_unix_ms
             FROM job ",
            $condition
        )
    };
}

struct SummaryRow {
    job_id: String,
    spec: String,
    generation: i64,
    kept_from: i64,
    live_workers: i64,
    last_iteration: Option<i64>,
    decision: Option<String>,
}

from_row!(SummaryRow { job_id, spec, generation, kept_from, live_workers, last_iteration, decision });

/// The query, with the expression for the decision in an allocation. Only the database reads the allocations, which
/// are megabytes for thousands of workers.
macro_rules! summaries {
    ($decision:literal) => {
        concat!(
            "SELECT job_id, spec, generation, kept_from,
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

impl Store {
    /// Returns the summary of every job, sorted by id.
    ///
    /// # Errors
    /// If the database cannot be read or contains an invalid value.
    pub async fn job_summaries(&self) -> Result<Vec<StoredSummary>, StoreError> {
        let rows: Vec<SummaryRow> = match &self.readers {
            Either::Sqlite(pool) => {
                sqlx::query_as(summaries!("json_extract(answer, '$.decision')")).fetch_all(pool).await?
            }
            Either::Postgres(pool) => {
                sqlx::query_as(summaries!("answer::json ->> 'decision'")).fetch_all(pool).await?
            }
        };
        let pasts = rows!(&self.readers, PastRow, pasts!(""))?;
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
                last_decision: row.decision.map(|decision| from_json(&decision, "decision")).transpose()?,
            })
        };
        rows.into_iter().map(summary).collect()
    }

    /// Returns the past of a job. It is empty if the job does not exist.
    ///
    /// # Errors
    /// See [`Store::job_summaries`].
    pub async fn past(&self, job_id: &JobId) -> Result<StoredPast, StoreError> {
        let past = rows!(&self.readers, PastRow, pasts!("WHERE job_id = $1"), job_id.as_str())?;
        Ok(past
            .into_iter()
            .next()
            .map(PastRow::read)
            .transpose()?
            .map_or_else(StoredPast::default, |(_, past)| past))
    }

    /// Returns the latest changes of the workers of a job, at most `limit`, oldest first.
    ///
    /// # Errors
    /// See [`Store::job_summaries`].
    pub async fn recent_events(&self, job_id: &JobId, limit: u64) -> Result<Vec<StoredEvent>, StoreError> {
        let events = rows!(
            &self.readers,
            (i64, String, String),
            "SELECT at_unix_ms, kind, worker FROM event WHERE job_id = $1 ORDER BY id DESC LIMIT $2",
            job_id.as_str(),
            integer(limit),
        )?;
        let event = |(at_unix_ms, kind, worker)| Ok(StoredEvent { at_unix_ms, kind, worker: id(worker)? });
        events.into_iter().rev().map(event).collect()
    }
}

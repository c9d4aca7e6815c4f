//! Summaries of all jobs, without loading any.

use evenstep_protocol::{Decision, JobId, JobSpec};

use crate::database::Either;
use crate::encode::{from_json, id};
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
        let summary = |row: SummaryRow| {
            let next_iteration = row.last_iteration.map_or(0, |last| last.cast_unsigned() + 1);
            Ok(StoredSummary {
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
}

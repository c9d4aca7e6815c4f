//! What is read back: at start, by views, and where an old answer is asked for again.

use std::collections::BTreeMap;

use evenstep_protocol::{
    AllocateAnswer, JobId, JobSpec, JoinRequest, NodeId, NodeSample, NodeView, Readings, TailReport,
    WorkerId, WorkerOverride, WorkerReport,
};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::writer::integer;
use super::{Store, StoreError};

/// Departures of a job that are read back at most, to tell who flaps.
const DEPARTURES_MAX: i64 = 1000;

/// A job as it was stored.
#[derive(Debug)]
pub struct StoredJob {
    /// Its wishes.
    pub spec: JobSpec,
    /// Its generation.
    pub generation: u64,
    /// The generation of its latest departure.
    pub departed_generation: u64,
    /// Every worker that ever joined, in order of the latest joining.
    pub workers: Vec<StoredWorker>,
    /// The last iteration that was answered.
    pub last_iteration: Option<u64>,
    /// Where its learning-rate rule stands (JSON); `None` before the first answer.
    pub learning_rate: Option<String>,
}

/// A worker as it was stored.
#[derive(Debug)]
pub struct StoredWorker {
    /// How it joined.
    pub request: JoinRequest,
    /// `live`, `left` or `expired`.
    pub state: String,
    /// As of its latest join or departure.
    pub last_seen_unix_ms: i64,
    /// How many reports are stored of it.
    pub reports: u64,
    /// The most it gets at once since it ran out of memory.
    pub oom_cap: Option<u64>,
    /// What an operator wants of it.
    pub operator_override: Option<WorkerOverride>,
    /// When it departed lately, in milliseconds since 1970, the oldest first.
    pub departures_unix_ms: Vec<i64>,
}

/// A report as it was stored.
pub type StoredReport = WorkerReport;

/// An answer as it was stored.
#[derive(Debug)]
pub struct StoredAnswer {
    /// The iteration.
    pub iteration: u64,
    /// The generation it was planned in.
    pub generation: u64,
    /// The answer, byte for byte.
    pub answer: String,
}

impl StoredAnswer {
    /// The answer as a value.
    ///
    /// # Errors
    /// Where it cannot be understood.
    pub fn parse(&self) -> Result<AllocateAnswer, StoreError> {
        json(&self.answer, "answer")
    }
}

impl Store {
    /// All jobs, by id.
    ///
    /// # Errors
    /// Where the database cannot be read.
    pub async fn job_ids(&self) -> Result<Vec<JobId>, StoreError> {
        let rows = sqlx::query("SELECT job_id FROM job ORDER BY job_id").fetch_all(&self.readers).await?;
        rows.iter().map(|row| id(row, "job_id")).collect()
    }

    /// A job, or `None` where there is none of this name.
    ///
    /// # Errors
    /// Where the database cannot be read or holds what cannot be understood.
    pub async fn job(&self, job_id: &JobId) -> Result<Option<StoredJob>, StoreError> {
        let mut snapshot = self.readers.begin().await?;
        let job = sqlx::query(
            "SELECT spec, generation, departed_generation, learning_rate FROM job WHERE job_id = ?1",
        )
        .bind(job_id.as_str())
        .fetch_optional(&mut *snapshot)
        .await?;
        let Some(job) = job else { return Ok(None) };
        let workers = sqlx::query(
            "SELECT worker, request, state, last_seen_unix_ms, oom_cap, operator_override, COALESCE(reports, 0) AS reports
             FROM worker
             LEFT JOIN (SELECT worker, COUNT(*) AS reports FROM report WHERE job_id = ?1 GROUP BY worker) USING (worker)
             WHERE job_id = ?1 ORDER BY seat",
        )
        .bind(job_id.as_str())
        .fetch_all(&mut *snapshot)
        .await?;
        let departures = sqlx::query(
            "SELECT worker, at_unix_ms FROM event WHERE job_id = ?1 AND kind IN ('left', 'expired')
             ORDER BY id DESC LIMIT ?2",
        )
        .bind(job_id.as_str())
        .bind(DEPARTURES_MAX)
        .fetch_all(&mut *snapshot)
        .await?;
        let mut departed: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for row in departures.iter().rev() {
            departed.entry(row.try_get("worker")?).or_default().push(row.try_get("at_unix_ms")?);
        }
        let last: Option<i64> =
            sqlx::query("SELECT MAX(iteration) AS last FROM allocation WHERE job_id = ?1")
                .bind(job_id.as_str())
                .fetch_one(&mut *snapshot)
                .await?
                .try_get("last")?;
        let mut worker = |row: &SqliteRow| {
            let operator_override: Option<&str> = row.try_get("operator_override")?;
            let oom_cap: Option<i64> = row.try_get("oom_cap")?;
            Ok(StoredWorker {
                oom_cap: oom_cap.map(i64::cast_unsigned),
                operator_override: operator_override.map(|wanted| json(wanted, "override")).transpose()?,
                departures_unix_ms: departed.remove(row.try_get::<&str, _>("worker")?).unwrap_or_default(),
                request: json(row.try_get("request")?, "join request")?,
                state: row.try_get("state")?,
                last_seen_unix_ms: row.try_get("last_seen_unix_ms")?,
                reports: unsigned(row, "reports")?,
            })
        };
        Ok(Some(StoredJob {
            spec: json(job.try_get("spec")?, "job")?,
            generation: unsigned(&job, "generation")?,
            departed_generation: unsigned(&job, "departed_generation")?,
            workers: workers.iter().map(&mut worker).collect::<Result<_, StoreError>>()?,
            last_iteration: last.map(i64::cast_unsigned),
            learning_rate: job.try_get("learning_rate")?,
        }))
    }

    /// What the models of a job have learned, where it was stored in this format.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn models(&self, job_id: &JobId, format: u32) -> Result<Option<Vec<u8>>, StoreError> {
        let query = sqlx::query_scalar("SELECT state FROM model_state WHERE job_id = ?1 AND format = ?2");
        Ok(query.bind(job_id.as_str()).bind(format).fetch_optional(&self.readers).await?)
    }

    /// What was learned on a kind of device, where it was stored in this format.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn device_model(&self, device: &str, format: u32) -> Result<Option<Vec<u8>>, StoreError> {
        let query = sqlx::query_scalar("SELECT state FROM device_model WHERE device = ?1 AND format = ?2");
        Ok(query.bind(device).bind(format).fetch_optional(&self.readers).await?)
    }

    /// Reports of the last `iterations` iterations that were reported, the oldest first.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn recent_reports(
        &self,
        job_id: &JobId,
        iterations: u64,
    ) -> Result<Vec<StoredReport>, StoreError> {
        let rows = sqlx::query(
            "SELECT * FROM report
             WHERE job_id = ?1 AND iteration > (SELECT MAX(iteration) FROM report WHERE job_id = ?1) - ?2
             ORDER BY iteration, worker",
        )
        .bind(job_id.as_str())
        .bind(integer(iterations))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(report).collect()
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
        let rows = sqlx::query(
            "SELECT * FROM report WHERE job_id = ?1 AND iteration >= ?2 AND iteration < ?3 ORDER BY iteration, worker",
        )
        .bind(job_id.as_str())
        .bind(integer(from))
        .bind(integer(from.saturating_add(limit)))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(report).collect()
    }

    /// The answer to an iteration: that of the latest generation.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn answer(&self, job_id: &JobId, iteration: u64) -> Result<Option<StoredAnswer>, StoreError> {
        let answers = self.answers(job_id, iteration, 1).await?;
        Ok(answers.into_iter().next())
    }

    /// Answers from iteration `from` on, at most `limit` iterations of them; of each the one of the latest generation.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn answers(
        &self,
        job_id: &JobId,
        from: u64,
        limit: u64,
    ) -> Result<Vec<StoredAnswer>, StoreError> {
        // With MAX() SQLite takes the other columns from the row that holds the maximum.
        let rows = sqlx::query(
            "SELECT iteration, MAX(generation) AS generation, answer FROM allocation
             WHERE job_id = ?1 AND iteration >= ?2 AND iteration < ?3 GROUP BY iteration ORDER BY iteration",
        )
        .bind(job_id.as_str())
        .bind(integer(from))
        .bind(integer(from.saturating_add(limit)))
        .fetch_all(&self.readers)
        .await?;
        let answer = |row: &SqliteRow| {
            Ok(StoredAnswer {
                iteration: unsigned(row, "iteration")?,
                generation: unsigned(row, "generation")?,
                answer: row.try_get("answer")?,
            })
        };
        rows.iter().map(answer).collect()
    }

    /// Every node with its latest sample.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn nodes(&self) -> Result<Vec<NodeView>, StoreError> {
        let rows = sqlx::query(
            "SELECT node, COUNT(*) AS samples, MAX(at_unix_ms), sample FROM node_sample GROUP BY node ORDER BY node",
        )
        .fetch_all(&self.readers)
        .await?;
        let node = |row: &SqliteRow| {
            Ok(NodeView {
                node: id(row, "node")?,
                samples: unsigned(row, "samples")?,
                latest: json(row.try_get("sample")?, "node sample")?,
            })
        };
        rows.iter().map(node).collect()
    }

    /// The latest samples of a node, the oldest first.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn node_samples(&self, node: &NodeId, limit: u64) -> Result<Vec<NodeSample>, StoreError> {
        let rows =
            sqlx::query("SELECT sample FROM node_sample WHERE node = ?1 ORDER BY at_unix_ms DESC LIMIT ?2")
                .bind(node.as_str())
                .bind(integer(limit))
                .fetch_all(&self.readers)
                .await?;
        rows.iter().rev().map(|row| json(row.try_get("sample")?, "node sample")).collect()
    }
}

pub(super) fn report(row: &SqliteRow) -> Result<StoredReport, StoreError> {
    let drivers: Readings = json(row.try_get("drivers")?, "drivers")?;
    let peak: Option<i64> = row.try_get("peak_memory_bytes")?;
    Ok(WorkerReport {
        worker: id::<WorkerId>(row, "worker")?,
        iteration: unsigned(row, "iteration")?,
        local_batch: unsigned(row, "local_batch")?,
        compute_time_s: row.try_get("compute_time_s")?,
        micro_batches: later(row, "micro_batches")?.map(i64::cast_unsigned),
        tail: tail(row)?,
        barrier_wait_s: row.try_get("barrier_wait_s")?,
        loader_wait_s: row.try_get("loader_wait_s")?,
        peak_memory_bytes: peak.map(i64::cast_unsigned),
        cost: later(row, "cost")?,
        communication_s: later(row, "communication_s")?,
        overlapped_communication_s: later(row, "overlapped_communication_s")?,
        gradient_sqr: later(row, "gradient_sqr")?,
        global_gradient_sqr: later(row, "global_gradient_sqr")?,
        drivers,
    })
}

fn tail(row: &SqliteRow) -> Result<Option<TailReport>, StoreError> {
    let Some(chunks) = later(row, "tail_chunks")? else { return Ok(None) };
    Ok(Some(TailReport {
        chunks: i64::cast_unsigned(chunks),
        samples: unsigned(row, "tail_samples")?,
        compute_time_s: row.try_get("tail_compute_time_s")?,
        claim_time_s: row.try_get("tail_claim_time_s")?,
    }))
}

/// A column that a database of an earlier schema, read offline and left as it is, does not have.
fn later<'r, T>(row: &'r SqliteRow, column: &str) -> Result<Option<T>, StoreError>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    match row.try_get(column) {
        Err(sqlx::Error::ColumnNotFound(_)) => Ok(None),
        read => Ok(read?),
    }
}

fn unsigned(row: &SqliteRow, column: &str) -> Result<u64, StoreError> {
    Ok(row.try_get::<i64, _>(column)?.cast_unsigned())
}

fn id<T: TryFrom<String, Error = evenstep_protocol::InvalidId>>(
    row: &SqliteRow,
    column: &str,
) -> Result<T, StoreError> {
    let text: String = row.try_get(column)?;
    T::try_from(text).map_err(|error| StoreError::Corrupt {
        what: "id",
        source: <serde_json::Error as serde::de::Error>::custom(error),
    })
}

fn json<T: serde::de::DeserializeOwned>(text: &str, what: &'static str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|source| StoreError::Corrupt { what, source })
}

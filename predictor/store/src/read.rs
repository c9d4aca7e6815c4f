//! What is read back: at start, by views, and where an old answer is asked for again.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::database::{on, rows, scalar};
use crate::from_row::from_row;
use crate::{Store, StoreError, integer};
use evenstep_protocol::{
    AllocateAnswer, InvalidId, JobId, JobSpec, JoinRequest, NodeId, NodeSample, NodeView, TailReport,
    WorkerOverride, WorkerReport,
};

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
    pub answer: Bytes,
}

impl StoredAnswer {
    /// The answer as a value.
    ///
    /// # Errors
    /// Where it cannot be understood.
    pub fn parse(&self) -> Result<AllocateAnswer, StoreError> {
        serde_json::from_slice(&self.answer).map_err(|source| StoreError::Corrupt { what: "answer", source })
    }
}

struct JobRow {
    spec: String,
    generation: i64,
    departed_generation: i64,
    learning_rate: Option<String>,
}

from_row!(JobRow { spec, generation, departed_generation, learning_rate });

struct WorkerRow {
    worker: String,
    request: String,
    state: String,
    last_seen_unix_ms: i64,
    oom_cap: Option<i64>,
    operator_override: Option<String>,
}

from_row!(WorkerRow { worker, request, state, last_seen_unix_ms, oom_cap, operator_override });

/// A report as it is read. The columns with defaults came later: a database of an earlier schema, read offline and left as
/// it is, does not have them.
pub(crate) struct ReportRow {
    pub iteration: i64,
    worker: String,
    local_batch: i64,
    compute_time_s: f64,
    barrier_wait_s: Option<f64>,
    loader_wait_s: Option<f64>,
    peak_memory_bytes: Option<i64>,
    drivers_text: String,
    cost: Option<f64>,
    communication_s: Option<f64>,
    overlapped_communication_s: Option<f64>,
    gradient_sqr: Option<f64>,
    global_gradient_sqr: Option<f64>,
    micro_batches: Option<i64>,
    tail_chunks: Option<i64>,
    tail_samples: Option<i64>,
    tail_compute_time_s: Option<f64>,
    tail_claim_time_s: Option<f64>,
}

from_row!(ReportRow {
    iteration, worker, local_batch, compute_time_s, barrier_wait_s, loader_wait_s, peak_memory_bytes, drivers_text;
    later: cost, communication_s, overlapped_communication_s, gradient_sqr, global_gradient_sqr, micro_batches,
        tail_chunks, tail_samples, tail_compute_time_s, tail_claim_time_s
});

impl Store {
    /// All jobs, by id.
    ///
    /// # Errors
    /// Where the database cannot be read.
    pub async fn job_ids(&self) -> Result<Vec<JobId>, StoreError> {
        let ids = rows!(&self.readers, (String,), "SELECT job_id FROM job ORDER BY job_id")?;
        ids.into_iter().map(|(job_id,)| id(job_id)).collect()
    }

    /// How many jobs there are.
    ///
    /// # Errors
    /// Where the database cannot be read.
    pub async fn job_count(&self) -> Result<usize, StoreError> {
        let count = scalar!(&self.readers, i64, "SELECT count(*) FROM job")?;
        Ok(count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0))
    }

    /// A job, or `None` where there is none of this name.
    ///
    /// # Errors
    /// Where the database cannot be read or holds what cannot be understood.
    pub async fn job(&self, job_id: &JobId) -> Result<Option<StoredJob>, StoreError> {
        let job_id = job_id.as_str();
        let (job, workers, departures, last) = on!(&self.readers, pool => {
            let mut snapshot = pool.begin().await?;
            let job = sqlx::query_as::<_, JobRow>(
                "SELECT spec, generation, departed_generation, learning_rate FROM job WHERE job_id = $1",
            );
            let Some(job) = job.bind(job_id).fetch_optional(&mut *snapshot).await? else { return Ok(None) };
            let workers = sqlx::query_as::<_, WorkerRow>(
                "SELECT worker, request, state, last_seen_unix_ms, oom_cap, operator_override
                 FROM worker WHERE job_id = $1 ORDER BY seat",
            );
            let workers = workers.bind(job_id).fetch_all(&mut *snapshot).await?;
            let departures = sqlx::query_as::<_, (String, i64)>(
                "SELECT worker, at_unix_ms FROM event WHERE job_id = $1 AND kind IN ('left', 'expired')
                 ORDER BY id DESC LIMIT $2",
            );
            let departures = departures.bind(job_id).bind(DEPARTURES_MAX).fetch_all(&mut *snapshot).await?;
            let last = sqlx::query_scalar::<_, Option<i64>>("SELECT MAX(iteration) FROM allocation WHERE job_id = $1");
            let last = last.bind(job_id).fetch_one(&mut *snapshot).await?;
            (job, workers, departures, last)
        });
        let mut departed: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for (worker, at_unix_ms) in departures.into_iter().rev() {
            departed.entry(worker).or_default().push(at_unix_ms);
        }
        let worker = |row: WorkerRow| {
            Ok(StoredWorker {
                oom_cap: row.oom_cap.map(i64::cast_unsigned),
                operator_override: row
                    .operator_override
                    .map(|wanted| json(&wanted, "override"))
                    .transpose()?,
                departures_unix_ms: departed.remove(&row.worker).unwrap_or_default(),
                request: json(&row.request, "join request")?,
                state: row.state,
                last_seen_unix_ms: row.last_seen_unix_ms,
            })
        };
        Ok(Some(StoredJob {
            spec: json(&job.spec, "job")?,
            generation: job.generation.cast_unsigned(),
            departed_generation: job.departed_generation.cast_unsigned(),
            workers: workers.into_iter().map(worker).collect::<Result<_, StoreError>>()?,
            last_iteration: last.map(i64::cast_unsigned),
            learning_rate: job.learning_rate,
        }))
    }

    /// How many reports of each worker of a job were stored, those included that live on in summaries.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn report_counts(&self, job_id: &JobId) -> Result<BTreeMap<String, u64>, StoreError> {
        let counts = rows!(
            &self.readers,
            (String, i64),
            "SELECT worker, CAST(sum(reports) AS BIGINT) FROM (
                 SELECT worker, count(*) AS reports FROM report WHERE job_id = $1 GROUP BY worker
                 UNION ALL SELECT worker, reports FROM worker_summary WHERE job_id = $1) AS counted
             GROUP BY worker",
            job_id.as_str(),
        )?;
        Ok(counts.into_iter().map(|(worker, reports)| (worker, reports.cast_unsigned())).collect())
    }

    /// The iteration from which on a job's answers are whole; those before it were let go.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn kept_from(&self, job_id: &JobId) -> Result<u64, StoreError> {
        let kept_from =
            scalar!(&self.readers, i64, "SELECT kept_from FROM job WHERE job_id = $1", job_id.as_str())?;
        Ok(kept_from.unwrap_or(0).cast_unsigned())
    }

    /// What the models of a job have learned, where it was stored in this format.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn models(&self, job_id: &JobId, format: u32) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = "SELECT state FROM model_state WHERE job_id = $1 AND format = $2";
        Ok(scalar!(&self.readers, Vec<u8>, sql, job_id.as_str(), i64::from(format))?)
    }

    /// What was learned on a kind of device, where it was stored in this format.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn device_model(&self, device: &str, format: u32) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = "SELECT state FROM device_model WHERE device = $1 AND format = $2";
        Ok(scalar!(&self.readers, Vec<u8>, sql, device, i64::from(format))?)
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
        let answers = rows!(
            &self.readers,
            (i64, i64, String),
            "SELECT iteration, generation, answer FROM allocation AS this
             WHERE job_id = $1 AND iteration >= $2 AND iteration < $3
               AND NOT EXISTS (SELECT 1 FROM allocation AS later WHERE later.job_id = this.job_id
                               AND later.iteration = this.iteration AND later.generation > this.generation)
             ORDER BY iteration",
            job_id.as_str(),
            integer(from),
            integer(from.saturating_add(limit)),
        )?;
        let answer = |(iteration, generation, answer): (i64, i64, String)| StoredAnswer {
            iteration: iteration.cast_unsigned(),
            generation: generation.cast_unsigned(),
            answer: answer.into(),
        };
        Ok(answers.into_iter().map(answer).collect())
    }

    /// Every node with its latest sample.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn nodes(&self) -> Result<Vec<NodeView>, StoreError> {
        let nodes = rows!(
            &self.readers,
            (String, i64, Option<String>),
            "SELECT node, samples,
                    (SELECT CAST(sample AS TEXT) FROM node_sample WHERE node_sample.node = node.node
                     ORDER BY at_unix_ms DESC LIMIT 1)
             FROM node ORDER BY node",
        )?;
        // The latest sample of a node is never let go by age.
        let seen = nodes.into_iter().filter_map(|(node, samples, latest)| Some((node, samples, latest?)));
        seen.map(|(node, samples, latest)| {
            let samples = samples.cast_unsigned();
            Ok(NodeView { node: id(node)?, samples, latest: json(&latest, "node sample")? })
        })
        .collect()
    }

    /// The latest samples of a node, the oldest first.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn node_samples(&self, node: &NodeId, limit: u64) -> Result<Vec<NodeSample>, StoreError> {
        let samples = rows!(
            &self.readers,
            (String,),
            "SELECT CAST(sample AS TEXT) FROM node_sample WHERE node = $1 ORDER BY at_unix_ms DESC LIMIT $2",
            node.as_str(),
            integer(limit),
        )?;
        samples.iter().rev().map(|(sample,)| json(sample, "node sample")).collect()
    }
}

impl TryFrom<ReportRow> for WorkerReport {
    type Error = StoreError;

    fn try_from(row: ReportRow) -> Result<Self, StoreError> {
        Ok(Self {
            tail: row.tail(),
            worker: id(row.worker)?,
            iteration: row.iteration.cast_unsigned(),
            local_batch: row.local_batch.cast_unsigned(),
            compute_time_s: row.compute_time_s,
            micro_batches: row.micro_batches.map(i64::cast_unsigned),
            barrier_wait_s: row.barrier_wait_s,
            loader_wait_s: row.loader_wait_s,
            peak_memory_bytes: row.peak_memory_bytes.map(i64::cast_unsigned),
            cost: row.cost,
            communication_s: row.communication_s,
            overlapped_communication_s: row.overlapped_communication_s,
            gradient_sqr: row.gradient_sqr,
            global_gradient_sqr: row.global_gradient_sqr,
            drivers: json(&row.drivers_text, "drivers")?,
        })
    }
}

impl ReportRow {
    /// All its columns are there, or none.
    fn tail(&self) -> Option<TailReport> {
        Some(TailReport {
            chunks: self.tail_chunks?.cast_unsigned(),
            samples: self.tail_samples?.cast_unsigned(),
            compute_time_s: self.tail_compute_time_s?,
            claim_time_s: self.tail_claim_time_s?,
        })
    }
}

pub(crate) fn id<T: TryFrom<String, Error = InvalidId>>(text: String) -> Result<T, StoreError> {
    T::try_from(text).map_err(|error| StoreError::Corrupt {
        what: "id",
        source: <serde_json::Error as serde::de::Error>::custom(error),
    })
}

fn json<T: serde::de::DeserializeOwned>(text: &str, what: &'static str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|source| StoreError::Corrupt { what, source })
}

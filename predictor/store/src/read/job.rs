//! Reading jobs and their workers.

use std::collections::BTreeMap;

use evenstep_protocol::{JobId, JobSpec, JoinRequest, WorkerOverride};

use crate::database::{on, rows, scalar};
use crate::encode::{Json, count, id, job_spec};
use crate::error::StoreError;
use crate::from_row::from_row;
use crate::store::Store;

use super::segments::{SEGMENTS, SegmentRow, StoredSegment};

/// Maximum number of a job's departures that are read to detect flapping workers.
const DEPARTURES_MAX: i64 = 1000;

/// A stored job.
#[derive(Debug)]
pub struct StoredJob {
    /// The job options.
    pub spec: JobSpec,
    /// Names of job options that this version does not know.
    pub unknown_options: Vec<String>,
    /// Generation.
    pub generation: u64,
    /// Generation of the latest departure.
    pub departed_generation: u64,
    /// All workers that ever joined, in order of their latest join.
    pub workers: Vec<StoredWorker>,
    /// The segments of its positions, in order, without the first one.
    pub segments: Vec<StoredSegment>,
    /// Whether workers joined, joined again or departed since the newest report.
    pub regrouped: bool,
    /// The position of the last allocation.
    pub last_iteration: Option<u64>,
    /// State of the learning-rate rule (JSON); `None` before the first allocation.
    pub learning_rate: Option<String>,
}

/// A stored worker.
#[derive(Debug)]
pub struct StoredWorker {
    /// The worker's latest join request.
    pub request: JoinRequest,
    /// `live`, `left` or `expired`.
    pub state: String,
    /// Time of the latest join or departure, in milliseconds since 1970.
    pub last_seen_unix_ms: i64,
    /// Maximum local batch since the worker ran out of memory.
    pub oom_cap: Option<u64>,
    /// The operator's override.
    pub operator_override: Option<WorkerOverride>,
    /// Times of recent departures, in milliseconds since 1970, oldest first.
    pub departures_unix_ms: Vec<i64>,
    /// Generations of recent joins, oldest first.
    pub join_generations: Vec<u64>,
}

struct JobRow {
    spec: Json,
    generation: i64,
    departed_generation: i64,
    regrouped: i64,
    learning_rate: Option<Json>,
}

from_row!(JobRow { spec, generation, departed_generation, regrouped, learning_rate });

struct WorkerRow {
    worker: String,
    request: Json,
    state: String,
    last_seen_unix_ms: i64,
    oom_cap: Option<i64>,
    operator_override: Option<Json>,
}

from_row!(WorkerRow { worker, request, state, last_seen_unix_ms, oom_cap, operator_override });

/// The highest allocated iteration.
pub(crate) const LAST_ITERATION: &str = "SELECT MAX(iteration) FROM allocation WHERE job_id = $1";

/// The latest departures of a job. SQLite would read all events of the job for `kind IN ('left', 'expired')`.
pub(crate) const DEPARTURES: &str = "SELECT worker, at_unix_ms FROM event WHERE id IN (
        SELECT id FROM (SELECT id FROM event WHERE job_id = $1 AND kind = 'left' ORDER BY id DESC LIMIT $2) AS gone
        UNION ALL
        SELECT id FROM (SELECT id FROM event WHERE job_id = $1 AND kind = 'expired' ORDER BY id DESC LIMIT $2) AS lost)
    ORDER BY id DESC LIMIT $2";

impl Store {
    /// Returns the number of jobs.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn job_count(&self) -> Result<usize, StoreError> {
        let count = scalar!(&self.readers, i64, "SELECT count(*) FROM job")?;
        Ok(count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0))
    }

    /// Returns the number of workers that ever joined a job.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn worker_count(&self, job_id: &JobId) -> Result<u64, StoreError> {
        let sql = "SELECT count(*) FROM worker WHERE job_id = $1";
        Ok(scalar!(&self.readers, i64, sql, job_id.as_str())?.unwrap_or(0).cast_unsigned())
    }

    /// Returns the number of live workers of every job.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn live_workers(&self) -> Result<Vec<(JobId, u64)>, StoreError> {
        let counts = rows!(
            &self.readers,
            (String, i64),
            "SELECT job_id, (SELECT count(*) FROM worker WHERE worker.job_id = job.job_id AND state = 'live')
             FROM job",
        )?;
        let count = |(job_id, workers): (String, i64)| Some((id(job_id).ok()?, workers.cast_unsigned()));
        Ok(counts.into_iter().filter_map(count).collect())
    }

    /// Returns a job with up to `joins` recent joins of each worker, or `None` if it does not exist.
    ///
    /// # Errors
    /// If the database cannot be read or contains an invalid value.
    pub async fn job(&self, job_id: &JobId, joins: usize) -> Result<Option<StoredJob>, StoreError> {
        let job_id = job_id.as_str();
        let (job, workers, departures, joins, segments, last) = on!(&self.readers, pool => {
            let mut snapshot = pool.begin().await?;
            let job = sqlx::query_as::<_, JobRow>(
                "SELECT spec, generation, departed_generation, regrouped, learning_rate FROM job WHERE job_id = $1",
            );
            let Some(job) = job.bind(job_id).fetch_optional(&mut *snapshot).await? else { return Ok(None) };
            let workers = sqlx::query_as::<_, WorkerRow>(
                "SELECT worker, request, state, last_seen_unix_ms, oom_cap, operator_override
                 FROM worker WHERE job_id = $1 ORDER BY seat",
            );
            let workers = workers.bind(job_id).fetch_all(&mut *snapshot).await?;
            let departures = sqlx::query_as::<_, (String, i64)>(
                DEPARTURES,
            );
            let departures = departures.bind(job_id).bind(DEPARTURES_MAX).fetch_all(&mut *snapshot).await?;
            let recent = sqlx::query_as::<_, (String, i64)>(
                "SELECT worker, generation FROM (
                     SELECT worker, generation, row_number() OVER (PARTITION BY worker ORDER BY id DESC) AS nth
                     FROM event WHERE job_id = $1 AND kind = 'joined') AS joins
                 WHERE nth <= $2 ORDER BY generation",
            );
            let joins = i64::try_from(joins).unwrap_or(i64::MAX);
            let joins = recent.bind(job_id).bind(joins).fetch_all(&mut *snapshot).await?;
            let segments = sqlx::query_as::<_, SegmentRow>(SEGMENTS);
            let segments = segments.bind(job_id).fetch_all(&mut *snapshot).await?;
            let last = sqlx::query_scalar::<_, Option<i64>>(LAST_ITERATION);
            let last = last.bind(job_id).fetch_one(&mut *snapshot).await?;
            (job, workers, departures, joins, segments, last)
        });
        let mut departed: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for (worker, at_unix_ms) in departures.into_iter().rev() {
            departed.entry(worker).or_default().push(at_unix_ms);
        }
        let mut joined: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (worker, generation) in joins {
            joined.entry(worker).or_default().push(generation.cast_unsigned());
        }
        let worker = |row: WorkerRow| {
            Ok(StoredWorker {
                oom_cap: row.oom_cap.map(|cap| count(cap, "oom_cap")).transpose()?,
                operator_override: row.operator_override.map(|wanted| wanted.read("override")).transpose()?,
                departures_unix_ms: departed.remove(&row.worker).unwrap_or_default(),
                join_generations: joined.remove(&row.worker).unwrap_or_default(),
                request: row.request.read("join request")?,
                state: row.state,
                last_seen_unix_ms: row.last_seen_unix_ms,
            })
        };
        let (spec, unknown_options) = job_spec(&job.spec)?;
        Ok(Some(StoredJob {
            spec,
            unknown_options,
            generation: count(job.generation, "generation")?,
            departed_generation: count(job.departed_generation, "departed_generation")?,
            workers: workers.into_iter().map(worker).collect::<Result<_, StoreError>>()?,
            segments: segments.iter().map(SegmentRow::segment).collect(),
            regrouped: job.regrouped != 0,
            last_iteration: last.map(i64::cast_unsigned),
            learning_rate: job.learning_rate.map(Json::into_text),
        }))
    }

    /// Returns the current generation of a job, and the generation below which allocations are void: of the latest departure, or
    /// 0 if no worker is live, because no one trains with them. Both are 0 for an unknown job. Also returns whether workers
    /// joined, joined again or departed since the newest report; false if no worker is live.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn generations(&self, job_id: &JobId) -> Result<(u64, u64, bool), StoreError> {
        let rows = rows!(
            &self.readers,
            (i64, i64, i64),
            "SELECT generation, CASE WHEN live THEN departed_generation ELSE 0 END, CASE WHEN live THEN regrouped ELSE 0 END
                FROM job, (SELECT EXISTS (SELECT 1 FROM worker WHERE job_id = $1 AND state = 'live') AS live) AS members
                WHERE job_id = $1",
            job_id.as_str()
        )?;
        let (current, departed, regrouped) = rows.first().copied().unwrap_or_default();
        Ok((current.cast_unsigned(), departed.cast_unsigned(), regrouped != 0))
    }

    /// Returns the first iteration of a job whose allocations are all kept; allocations of earlier iterations
    /// have expired.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn kept_from(&self, job_id: &JobId) -> Result<u64, StoreError> {
        let kept_from =
            scalar!(&self.readers, i64, "SELECT kept_from FROM job WHERE job_id = $1", job_id.as_str())?;
        count(kept_from.unwrap_or(0), "kept_from")
    }
}

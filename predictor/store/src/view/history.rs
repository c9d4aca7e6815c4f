//! History of a job, downsampled to a bounded number of iterations for charts.

use std::ops::Range;

use evenstep_protocol::{JobId, WorkerId};

use super::View;
use crate::database::{rows, scalar};
use crate::encode::{Json, id, integer};
use crate::error::StoreError;
use crate::read::{StoredAllocation, stored};

/// Every n-th iteration in a range.
#[derive(Debug, Clone)]
pub struct EveryNth {
    /// The range.
    pub iterations: Range<u64>,
    /// n, at least 1: selects the first iteration with reports from each multiple of n on. Clients may report and
    /// request only some iterations.
    pub every: u64,
}

/// The first iteration from an expression on and before $4 that has reports, else the first that was allocated.
macro_rules! first_from {
    ($start:literal) => {
        concat!(
            "COALESCE((SELECT min(iteration) FROM report WHERE job_id = $1 AND iteration >= ",
            $start,
            " AND iteration < CAST($4 AS BIGINT)),
             (SELECT min(iteration) FROM allocation WHERE job_id = $1 AND iteration >= ",
            $start,
            " AND iteration < CAST($4 AS BIGINT)))"
        )
    };
}

/// A common table expression `wanted` with the iterations of an [`EveryNth`]: from $2, every $3-th, before
/// $4.
macro_rules! every_nth {
    () => {
        concat!(
            "WITH RECURSIVE wanted(iteration) AS (SELECT ",
            first_from!("CAST($2 AS BIGINT)"),
            " UNION ALL SELECT ",
            first_from!("(wanted.iteration / CAST($3 AS BIGINT) + 1) * CAST($3 AS BIGINT)"),
            " FROM wanted WHERE wanted.iteration IS NOT NULL) "
        )
    };
}

/// The wanted iterations, as charts show them.
pub(crate) const STEPS: &str = concat!(
    every_nth!(),
    "SELECT wanted.iteration, step.at_unix_ms, step.shown
     FROM wanted LEFT JOIN step ON step.job_id = $1 AND step.iteration = wanted.iteration
     WHERE wanted.iteration IS NOT NULL ORDER BY wanted.iteration"
);

/// The size of the wanted iterations as charts show them, in bytes.
pub(crate) const SIZE: &str = concat!(
    every_nth!(),
    "SELECT CAST(coalesce(sum(octet_length(step.shown)), 0) AS BIGINT)
     FROM wanted LEFT JOIN step ON step.job_id = $1 AND step.iteration = wanted.iteration"
);

/// The allocation that an iteration was computed with: an allocation holds until the next one.
pub(crate) const ALLOCATION: &str = "SELECT iteration, generation, answer, at_unix_ms FROM allocation
    WHERE job_id = $1 AND iteration <= $2 ORDER BY iteration DESC, generation DESC LIMIT 1";

/// The measured times of an iteration.
pub(crate) const MEASURED: &str =
    "SELECT worker, local_batch, compute_time_s, barrier_wait_s, loader_wait_s, step_time_s, iterations, loss
    FROM report WHERE job_id = $1 AND iteration = $2 ORDER BY worker";

/// The first and the last allocated iteration. SQLite reads all rows if one query requests both.
pub(crate) const ALLOCATED: &str = "SELECT (SELECT min(iteration) FROM allocation WHERE job_id = $1),
    (SELECT max(iteration) FROM allocation WHERE job_id = $1)";

/// The time of the first allocation from an iteration on. To find an allocation, SQLite reads others completely, which are
/// large for many workers; so the iteration as charts show it is looked for first.
pub(crate) const TIME: &str = "SELECT coalesce(
    (SELECT at_unix_ms FROM step WHERE job_id = $1 AND iteration = $2),
    (SELECT at_unix_ms FROM allocation WHERE job_id = $1 AND iteration >= $2 ORDER BY iteration LIMIT 1))";

/// The size of the latest iteration before another one as charts show it, in bytes.
pub(crate) const LATEST_SIZE: &str = "SELECT CAST(octet_length(shown) AS BIGINT) FROM step
    WHERE job_id = $1 AND iteration < $2 ORDER BY iteration DESC LIMIT 1";

/// The measured times and the loss of a report.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The worker.
    pub worker: WorkerId,
    /// Local batch, in samples.
    pub local_batch: u64,
    /// Compute time (forward and backward), in seconds.
    pub compute_time_s: f64,
    /// Barrier wait, in seconds.
    pub barrier_wait_s: Option<f64>,
    /// Time spent waiting for data, in seconds.
    pub loader_wait_s: Option<f64>,
    /// Time of the whole step, in seconds.
    pub step_time_s: Option<f64>,
    /// Number of iterations of its size that it stands for.
    pub iterations: Option<f64>,
    /// Mean loss over the local batch.
    pub loss: Option<f64>,
}

impl View {
    /// Returns the iterations of a job that were allocated since a given time. Uses binary search, because
    /// iterations are allocated in order or nearly in order.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn iterations_since(&mut self, job_id: &JobId, unix_ms: i64) -> Result<Range<u64>, StoreError> {
        let job = job_id.as_str();
        let bounds = rows!(self.connection()?, (Option<i64>, Option<i64>), ALLOCATED, job)?;
        let Some(&(Some(first), Some(last))) = bounds.first() else { return Ok(0..0) };
        let (mut low, mut high) = (first, last + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            let at = scalar!(self.connection()?, Option<i64>, TIME, job, middle)?.flatten();
            if at.is_none_or(|at| at >= unix_ms) { high = middle } else { low = middle + 1 }
        }
        Ok(low.cast_unsigned()..(last + 1).cast_unsigned())
    }

    /// Returns selected iterations of a job, each as charts show it (JSON) with the time of its allocation, in milliseconds
    /// since 1970; `None` if that is not stored.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn every_nth_step(
        &mut self,
        job_id: &JobId,
        wanted: &EveryNth,
    ) -> Result<Vec<(u64, Option<(i64, String)>)>, StoreError> {
        let steps = rows!(
            self.connection()?,
            (i64, Option<i64>, Option<Json>),
            STEPS,
            job_id.as_str(),
            integer(wanted.iterations.start),
            integer(wanted.every),
            integer(wanted.iterations.end),
        )?;
        let step = |(iteration, at_unix_ms, shown): (i64, Option<i64>, Option<Json>)| {
            (iteration.cast_unsigned(), at_unix_ms.zip(shown.map(Json::into_text)))
        };
        Ok(steps.into_iter().map(step).collect())
    }

    /// Returns the size of selected iterations as charts show them, in bytes. Those that are not stored have no size.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn every_nth_size(&mut self, job_id: &JobId, wanted: &EveryNth) -> Result<u64, StoreError> {
        let size = scalar!(
            self.connection()?,
            i64,
            SIZE,
            job_id.as_str(),
            integer(wanted.iterations.start),
            integer(wanted.every),
            integer(wanted.iterations.end),
        )?;
        Ok(size.unwrap_or(0).cast_unsigned())
    }

    /// Returns the size of the latest iteration before `end` as charts show it, in bytes; `None` if none is stored.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn latest_size(&mut self, job_id: &JobId, end: u64) -> Result<Option<u64>, StoreError> {
        let size = scalar!(self.connection()?, i64, LATEST_SIZE, job_id.as_str(), integer(end))?;
        Ok(size.map(i64::cast_unsigned))
    }

    /// Returns the allocation that an iteration was computed with, from its latest generation, and its time in
    /// milliseconds since 1970: the allocation of the iteration or the latest before it. `None` without either.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn allocation(
        &mut self,
        job_id: &JobId,
        iteration: u64,
    ) -> Result<Option<(i64, StoredAllocation)>, StoreError> {
        type Row = (i64, i64, Json, i64);
        let answers = rows!(self.connection()?, Row, ALLOCATION, job_id.as_str(), integer(iteration))?;
        let answer = |(iteration, generation, answer, at_unix_ms)| {
            (at_unix_ms, stored((iteration, generation, answer)))
        };
        Ok(answers.into_iter().next().map(answer))
    }

    /// Returns the measured times of an iteration, by worker.
    ///
    /// # Errors
    /// If the database cannot be read or contains an invalid value.
    pub async fn measured(&mut self, job_id: &JobId, iteration: u64) -> Result<Vec<Measured>, StoreError> {
        type Time = Option<f64>;
        type Row = (String, i64, f64, Time, Time, Time, Option<f64>, Option<f64>);
        let reports = rows!(self.connection()?, Row, MEASURED, job_id.as_str(), integer(iteration))?;
        let measured = |row: Row| {
            let (
                worker,
                local_batch,
                compute_time_s,
                barrier_wait_s,
                loader_wait_s,
                step_time_s,
                iterations,
                loss,
            ) = row;
            Ok(Measured {
                worker: id(worker)?,
                local_batch: local_batch.cast_unsigned(),
                compute_time_s,
                barrier_wait_s,
                loader_wait_s,
                step_time_s,
                iterations,
                loss,
            })
        };
        reports.into_iter().map(measured).collect()
    }
}

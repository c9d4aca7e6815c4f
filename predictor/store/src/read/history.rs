//! History of a job, downsampled to a bounded number of iterations for charts.

use std::ops::Range;

use evenstep_protocol::{JobId, WorkerId};

use super::allocations::StoredAllocation;
use crate::database::{rows, scalar};
use crate::encode::{id, integer};
use crate::error::StoreError;
use crate::store::Store;

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

/// The measured times and the loss of a report.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The iteration.
    pub iteration: u64,
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
    /// Mean loss over the local batch.
    pub loss: Option<f64>,
}

impl Store {
    /// Returns the iterations of a job that were allocated since a given time. Uses binary search, because
    /// iterations are allocated in order or nearly in order.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn iterations_since(&self, job_id: &JobId, unix_ms: i64) -> Result<Range<u64>, StoreError> {
        let job = job_id.as_str();
        // SQLite reads all rows if one query requests both.
        let bounds = "SELECT (SELECT min(iteration) FROM allocation WHERE job_id = $1),
             (SELECT max(iteration) FROM allocation WHERE job_id = $1)";
        let bounds = rows!(&self.readers, (Option<i64>, Option<i64>), bounds, job)?;
        let Some(&(Some(first), Some(last))) = bounds.first() else { return Ok(0..0) };
        let (mut low, mut high) = (first, last + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            let at = "SELECT at_unix_ms FROM allocation WHERE job_id = $1 AND iteration >= $2 ORDER BY iteration LIMIT 1";
            let at = scalar!(&self.readers, i64, at, job, middle)?;
            if at.is_none_or(|at| at >= unix_ms) { high = middle } else { low = middle + 1 }
        }
        Ok(low.cast_unsigned()..(last + 1).cast_unsigned())
    }

    /// Returns the allocations that selected iterations of a job were computed with, and their times in
    /// milliseconds since 1970. Each has the number of the selected iteration: an allocation holds until the next
    /// one. It is from the latest generation.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn every_nth_allocation(
        &self,
        job_id: &JobId,
        wanted: &EveryNth,
    ) -> Result<Vec<(i64, StoredAllocation)>, StoreError> {
        let answers = rows!(
            &self.readers,
            (i64, i64, i64, String),
            concat!(
                every_nth!(),
                "SELECT wanted.iteration, this.generation, this.at_unix_ms, this.answer
             FROM wanted JOIN allocation AS this ON this.job_id = $1 AND this.iteration =
                 (SELECT max(iteration) FROM allocation WHERE job_id = $1 AND iteration <= wanted.iteration)
             WHERE NOT EXISTS (SELECT 1 FROM allocation AS later WHERE later.job_id = this.job_id
                               AND later.iteration = this.iteration AND later.generation > this.generation)
             ORDER BY wanted.iteration"
            ),
            job_id.as_str(),
            integer(wanted.iterations.start),
            integer(wanted.every),
            integer(wanted.iterations.end),
        )?;
        let answer = |(iteration, generation, at_unix_ms, answer): (i64, i64, i64, String)| {
            let (iteration, generation) = (iteration.cast_unsigned(), generation.cast_unsigned());
            (at_unix_ms, StoredAllocation { iteration, generation, answer: answer.into() })
        };
        Ok(answers.into_iter().map(answer).collect())
    }

    /// Returns the measured times of selected iterations of a job, by iteration and worker.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn every_nth_report(
        &self,
        job_id: &JobId,
        wanted: &EveryNth,
    ) -> Result<Vec<Measured>, StoreError> {
        let reports = rows!(
            &self.readers,
            (i64, String, i64, f64, Option<f64>, Option<f64>, Option<f64>),
            concat!(
                every_nth!(),
                "SELECT report.iteration, worker, local_batch, compute_time_s, barrier_wait_s, loader_wait_s, loss
             FROM wanted JOIN report ON report.job_id = $1 AND report.iteration = wanted.iteration
             ORDER BY report.iteration, worker"
            ),
            job_id.as_str(),
            integer(wanted.iterations.start),
            integer(wanted.every),
            integer(wanted.iterations.end),
        )?;
        reports
            .into_iter()
            .map(|(iteration, worker, local_batch, compute_time_s, barrier_wait_s, loader_wait_s, loss)| {
                Ok(Measured {
                    iteration: iteration.cast_unsigned(),
                    worker: id(worker)?,
                    local_batch: local_batch.cast_unsigned(),
                    compute_time_s,
                    barrier_wait_s,
                    loader_wait_s,
                    loss,
                })
            })
            .collect()
    }
}

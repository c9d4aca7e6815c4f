//! A row of `report`.

use evenstep_protocol::{TailReport, WorkerReport};

use crate::encode::{from_json, id};
use crate::error::StoreError;
use crate::from_row::from_row;

/// A row of `report`. Newer columns have defaults, as a database with an older schema, read offline without a
/// migration, lacks them.
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
    gradient_sqr: Option<f64>,
    global_gradient_sqr: Option<f64>,
    micro_batches: Option<i64>,
    tail_chunks: Option<i64>,
    tail_samples: Option<i64>,
    tail_compute_time_s: Option<f64>,
    tail_claim_time_s: Option<f64>,
    loss: Option<f64>,
    step_time_s: Option<f64>,
    iterations: Option<f64>,
}

from_row!(ReportRow {
    iteration, worker, local_batch, compute_time_s, barrier_wait_s, loader_wait_s, peak_memory_bytes, drivers_text;
    later: cost, gradient_sqr, global_gradient_sqr, micro_batches,
        tail_chunks, tail_samples, tail_compute_time_s, tail_claim_time_s, loss, step_time_s, iterations
});

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
            step_time_s: row.step_time_s,
            iterations: row.iterations,
            peak_memory_bytes: row.peak_memory_bytes.map(i64::cast_unsigned),
            cost: row.cost,
            gradient_sqr: row.gradient_sqr,
            global_gradient_sqr: row.global_gradient_sqr,
            loss: row.loss,
            drivers: from_json(&row.drivers_text, "drivers")?,
        })
    }
}

impl ReportRow {
    /// Returns the tail's values; either all of its columns are null or none.
    fn tail(&self) -> Option<TailReport> {
        Some(TailReport {
            chunks: self.tail_chunks?.cast_unsigned(),
            samples: self.tail_samples?.cast_unsigned(),
            compute_time_s: self.tail_compute_time_s?,
            claim_time_s: self.tail_claim_time_s?,
        })
    }
}

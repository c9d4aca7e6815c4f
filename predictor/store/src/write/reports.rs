//! Insertion of reports.

use std::borrow::Cow;

use evenstep_protocol::{TailReport, WorkerReport};

use crate::database::Connection;
use crate::encode::{integer, to_json};
use crate::error::StoreError;
use crate::values::{Column, RowPosition, execute};

/// A row of `report`.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReportRow<'a> {
    pub job_id: &'a str,
    pub at_unix_ms: i64,
    pub report: &'a WorkerReport,
}

const INSERT: &str = "INSERT INTO report
    (job_id, at_unix_ms, iteration, worker, local_batch, compute_time_s, barrier_wait_s, loader_wait_s, peak_memory_bytes,
     drivers, cost, gradient_sqr, global_gradient_sqr, micro_batches,
     tail_chunks, tail_samples, tail_compute_time_s, tail_claim_time_s, loss, step_time_s, iterations)
    {} ON CONFLICT DO NOTHING";

/// Inserts reports; those that are already stored stay unchanged.
///
/// # Errors
/// A database error; a missing job is a foreign-key violation.
pub(super) async fn insert(connection: &mut Connection, rows: &[ReportRow<'_>]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let drivers = rows.iter().map(|row| to_json(&row.report.drivers)).collect::<Result<Vec<_>, _>>()?;
    let columns = vec![
        Column::text(rows.iter().map(|row| row.job_id)),
        Column::integer(rows.iter().map(|row| row.at_unix_ms)),
        integers(rows, |report| Some(report.iteration)),
        Column::text(rows.iter().map(|row| row.report.worker.as_str())),
        integers(rows, |report| Some(report.local_batch)),
        reals(rows, |report| Some(report.compute_time_s)),
        reals(rows, |report| report.barrier_wait_s),
        reals(rows, |report| report.loader_wait_s),
        integers(rows, |report| report.peak_memory_bytes),
        Column::json(drivers.iter().map(|drivers| Cow::from(drivers.as_str()))),
        reals(rows, |report| report.cost),
        reals(rows, |report| report.gradient_sqr),
        reals(rows, |report| report.global_gradient_sqr),
        integers(rows, |report| report.micro_batches),
        integers(rows, |report| tail(report, |tail| tail.chunks)),
        integers(rows, |report| tail(report, |tail| tail.samples)),
        reals(rows, |report| tail(report, |tail| tail.compute_time_s)),
        reals(rows, |report| tail(report, |tail| tail.claim_time_s)),
        reals(rows, |report| report.loss),
        reals(rows, |report| report.step_time_s),
        reals(rows, |report| report.iterations),
    ];
    execute(connection, INSERT, RowPosition::Insert, columns).await?;
    Ok(())
}

fn integers<'a>(rows: &[ReportRow<'_>], of: impl Fn(&WorkerReport) -> Option<u64>) -> Column<'a> {
    Column::integer(rows.iter().map(|row| of(row.report).map(integer)))
}

fn reals<'a>(rows: &[ReportRow<'_>], of: impl Fn(&WorkerReport) -> Option<f64>) -> Column<'a> {
    Column::real(rows.iter().map(|row| of(row.report)))
}

fn tail<T>(report: &WorkerReport, of: impl Fn(&TailReport) -> T) -> Option<T> {
    report.tail.as_ref().map(of)
}

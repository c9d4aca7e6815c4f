//! The rows in which ranks exchange their reports, decoded for the predictor.

use evenstep_protocol::columns::{COLUMNS, Number};
use evenstep_protocol::{Readings, WorkerId, WorkerReport, driver};

/// Names of the driver readings in a row, in order.
pub const DRIVERS: [&str; driver::ALL.len()] = driver::ALL;

/// Columns of a report in a row, in order, after the iteration plus 1 and before the readings. NaN stands for a missing value.
pub const NAMES: [&str; 10] = [
    "local_batch",
    "compute_time_s",
    "loader_wait_s",
    "micro_batches",
    "peak_memory_bytes",
    "tail_chunks",
    "tail_samples",
    "tail_compute_time_s",
    "tail_claim_time_s",
    "loss",
];

/// Number of values of a row.
pub const ROW: usize = 1 + NAMES.len() + DRIVERS.len();

/// Returns the reports in rows by rank. A rank without a row, without samples or without a measured time has none.
///
/// `step` is the time of the whole step, and the number of iterations that it stands for.
pub fn decode(workers: &[WorkerId], rows: &[f64], step: Option<(Option<f64>, f64)>) -> Vec<WorkerReport> {
    let rows = workers.iter().zip(rows.chunks_exact(ROW));
    let mut reports: Vec<WorkerReport> = rows.filter_map(|(worker, row)| report(worker, row)).collect();
    let busy = |report: &WorkerReport| {
        let claim_s = report.tail.map_or(0.0, |tail| tail.claim_time_s);
        report.compute_time_s + report.loader_wait_s.unwrap_or(0.0) + claim_s
    };
    let last_s = reports.iter().map(busy).fold(0.0, f64::max);
    // A mean without the ranks whose loss is not finite would hide that the training diverges.
    let is_finite = reports.iter().filter_map(|report| report.loss).all(f64::is_finite);
    reports.retain(|report| report.local_batch > 0);
    for report in &mut reports {
        report.barrier_wait_s = Some(last_s - busy(report));
        report.loss = report.loss.filter(|_| is_finite);
    }
    // It is the same for all ranks.
    if let Some((first, (step_time_s, iterations))) = reports.first_mut().zip(step) {
        (first.step_time_s, first.iterations) = (step_time_s, Some(iterations));
    }
    reports
}

/// Returns the report in a row, if the rank has one with a measured time.
fn report(worker: &WorkerId, row: &[f64]) -> Option<WorkerReport> {
    let (iteration, values) = row.split_first().filter(|(iteration, _)| **iteration > 0.0)?;
    let (numbers, readings) = values.split_at_checked(NAMES.len())?;
    let mut report = WorkerReport::new(worker.clone(), *iteration as u64 - 1, 0, 0.0);
    for (name, value) in NAMES.iter().zip(numbers).filter(|(_, value)| !value.is_nan()) {
        match COLUMNS.iter().find(|column| column.name == *name)?.number {
            Number::Integer { set, .. } => set(&mut report, *value as u64),
            Number::Real { set, .. } => set(&mut report, *value),
        }
    }
    // A rank of an earlier version writes 0 for no tail.
    report.tail = report.tail.filter(|tail| tail.chunks > 0);
    let known = DRIVERS.into_iter().zip(readings).filter(|(_, value)| value.is_finite());
    report.drivers = known.map(|(name, value)| (name.to_owned(), *value)).collect::<Readings>();
    (report.compute_time_s > 0.0).then_some(report)
}

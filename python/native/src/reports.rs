//! The rows in which ranks exchange their reports, decoded for the predictor.

use evenstep_protocol::{TailReport, WorkerId, WorkerReport, driver};

/// Names of the driver readings in a row, in order.
pub const DRIVERS: [&str; driver::ALL.len()] = driver::ALL;

/// Number of values before the readings: see `Report.to_row` in `evenstep/exchange/report.py`.
const VALUES: usize = 11;

/// Number of values of a row.
pub const ROW: usize = VALUES + DRIVERS.len();

/// Returns the reports in rows by rank. A rank without a row, without samples or without a measured time has none.
///
/// `step` is the time of the whole step, and the number of iterations that it stands for.
pub fn decode(workers: &[WorkerId], rows: &[f64], step: Option<(Option<f64>, f64)>) -> Vec<WorkerReport> {
    let measured = workers.iter().zip(rows.chunks_exact(ROW)).filter(|(_, row)| row[0] > 0.0 && row[2] > 0.0);
    let busy = |row: &[f64]| row[2] + row[3] + row[9];
    let last_s = measured.clone().map(|(_, row)| busy(row)).fold(0.0, f64::max);
    // A mean without the ranks whose loss is not finite would hide that the training diverges.
    let is_finite = measured.clone().all(|(_, row)| !row[10].is_infinite());
    let report = |(worker, row): (&WorkerId, &[f64])| WorkerReport {
        // A report without this field means one pass.
        micro_batches: (row[4] > 1.0).then_some(row[4] as u64),
        tail: (row[6] > 0.0).then(|| TailReport {
            chunks: row[6] as u64,
            samples: row[7] as u64,
            compute_time_s: row[8],
            claim_time_s: row[9],
        }),
        barrier_wait_s: Some(last_s - busy(row)),
        loader_wait_s: Some(row[3]),
        loss: (is_finite && !row[10].is_nan()).then_some(row[10]),
        peak_memory_bytes: row[5].is_finite().then_some(row[5] as u64),
        drivers: readings(&row[VALUES..]),
        ..WorkerReport::new(worker.clone(), row[0] as u64 - 1, row[1] as u64, row[2])
    };
    let mut reports: Vec<WorkerReport> = measured.filter(|(_, row)| row[1] > 0.0).map(report).collect();
    // It is the same for all ranks.
    if let Some((first, (step_time_s, iterations))) = reports.first_mut().zip(step) {
        (first.step_time_s, first.iterations) = (step_time_s, Some(iterations));
    }
    reports
}

fn readings(values: &[f64]) -> evenstep_protocol::Readings {
    let known = DRIVERS.into_iter().zip(values).filter(|(_, value)| value.is_finite());
    known.map(|(name, value)| (name.to_owned(), *value)).collect()
}

//! A job's reports as a trace.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use evenstep_core::attempts::{Attempts, Iteration, Segment};
use evenstep_core::job::inputs;
use evenstep_protocol::{JobId, WorkerReport};
use evenstep_store::{StoredSegment, read_reports};

use super::columns::{Readings, Trace};
use super::table::ROWS_MAX;
use super::time::TimeKind;

/// Reads the reports of a job and groups them by worker.
///
/// # Errors
/// If the store cannot be read, or holds no reports or too many reports of the job.
pub fn read(address: &str, job_id: &JobId) -> anyhow::Result<Trace> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (reports, segments) = runtime
        .block_on(read_reports(address, job_id, ROWS_MAX))
        .with_context(|| format!("store {address}"))?;
    anyhow::ensure!(!reports.is_empty(), "store {address}: no reports of job {job_id}");
    anyhow::ensure!(
        reports.len() <= ROWS_MAX,
        "store {address}: job {job_id} has more than the maximum of {ROWS_MAX} reports"
    );
    let segment = |stored: StoredSegment| {
        let StoredSegment { attempt, first_iteration, first_position } = stored;
        Segment { attempt, first_iteration, first_position }
    };
    Ok(trace(job_id, &reports, &Attempts::restore(segments.into_iter().map(segment))))
}

/// Groups reports by worker. `reports` must be in order of their positions. If the run returned, the label of an iteration has its
/// attempt.
fn trace(job_id: &JobId, reports: &[WorkerReport], attempts: &Attempts) -> Trace {
    let label = |position: u64| match attempts.at(position) {
        Iteration { iteration, .. } if attempts.newest() == 0 => iteration.to_string(),
        Iteration { attempt, iteration } => format!("{attempt}/{iteration}"),
    };
    let names: BTreeSet<&str> = reports.iter().flat_map(inputs).map(|(name, _)| name).collect();
    let mut workers: BTreeMap<&str, Vec<&WorkerReport>> = BTreeMap::new();
    for report in reports {
        workers.entry(report.worker.as_str()).or_default().push(report);
    }
    let series = workers.into_iter().map(|(worker, reports)| readings(worker, &reports, &names, label));
    let mut trace = Trace {
        trace: job_id.to_string(),
        time: TimeKind::Iteration,
        has_times: true,
        drivers: names.iter().map(|name| (*name).to_owned()).collect(),
        series: series.filter(|series| !series.target.is_empty()).collect(),
        notes: Vec::new(),
    };
    let kept: usize = trace.series.iter().map(|series| series.target.len()).sum();
    trace.note(reports.len() - kept, "because they have no samples");
    trace
}

fn readings(
    worker: &str,
    reports: &[&WorkerReport],
    names: &BTreeSet<&str>,
    label: impl Fn(u64) -> String,
) -> Readings {
    let mut series = Readings { id: worker.to_owned(), ..Readings::default() };
    let mut before: Option<&WorkerReport> = None;
    for report in reports {
        let speed = report.local_batch as f64 / report.compute_time_s;
        // A worker without samples has no speed.
        if speed.is_finite() && speed > 0.0 {
            // Drivers are read at the end of an iteration, so they are inputs of the next one.
            let fresh = before.filter(|before| before.iteration + 1 == report.iteration);
            let told: BTreeMap<&str, f64> = fresh.into_iter().flat_map(inputs).collect();
            let reading = |name: &&str| told.get(*name).copied().filter(|value| value.is_finite());
            series.ticks.push(report.iteration);
            series.at.push(label(report.iteration));
            series.times.push(report.iteration as f64);
            series.target.push(speed);
            series.batch.push(report.local_batch);
            series.drivers.push(names.iter().map(reading).collect());
        }
        before = Some(report);
    }
    series
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::WorkerId;

    use super::*;

    fn report(worker: &str, iteration: u64, local_batch: u64, driver: f64) -> WorkerReport {
        WorkerReport {
            drivers: BTreeMap::from([("psi".to_owned(), driver)]),
            ..WorkerReport::new(WorkerId::new(worker).unwrap(), iteration, local_batch, 0.5)
        }
    }

    /// The drivers of an iteration are inputs of the next one only. After a gap no drivers are known. An
    /// iteration without samples has no speed.
    #[test]
    fn drivers_belong_to_the_next_iteration() {
        let reports = [
            report("a", 3, 8, 0.1),
            report("b", 3, 4, 0.2),
            report("a", 4, 8, 0.3),
            report("a", 5, 0, 0.4),
            report("a", 6, 8, 0.5),
            report("a", 9, 2, 0.6),
        ];
        let segment = Segment { attempt: 2, first_iteration: 1, first_position: 6 };
        let attempts = Attempts::restore([segment]);
        let trace = trace(&JobId::new("j").unwrap(), &reports, &attempts);
        assert_eq!(trace.drivers, ["psi"]);
        let a = &trace.series[0];
        assert_eq!((a.ticks.clone(), a.target.clone()), (vec![3, 4, 6, 9], vec![16.0, 16.0, 16.0, 4.0]));
        assert_eq!(a.at, ["1/3", "1/4", "2/1", "2/4"], "attempt and iteration of the client");
        assert_eq!(a.drivers, [[None], [Some(0.1)], [Some(0.4)], [None]]);
        assert_eq!(trace.series[1].target, [8.0]);
    }
}

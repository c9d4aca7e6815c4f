//! Roll-ups of expired iterations.

use std::collections::BTreeMap;

use evenstep_protocol::{AllocateResponse, JobId, WorkerReport};

use super::expired::SLICE_ROWS;
use super::report_row::ReportRow;
use crate::database::rows;
use crate::encode::{Json, integer};
use crate::error::StoreError;
use crate::from_row::from_row;
use crate::roll_up::RollUp;
use crate::store::Store;
use crate::summary::{MINUTE_S, WorkerStep, WorkerSums, predicted_time_s, step_start};

/// The bounds of the iterations of a job.
pub(crate) const SPAN: &str = "SELECT kept_from,
    (SELECT min(iteration) FROM allocation WHERE job_id = $1) AS first_answer,
    (SELECT min(iteration) FROM report WHERE job_id = $1) AS first_report,
    (SELECT max(iteration) FROM allocation WHERE job_id = $1) AS last_answer,
    (SELECT max(iteration) FROM report WHERE job_id = $1) AS last_report,
    (SELECT count(*) FROM worker WHERE job_id = $1) AS workers
    FROM job WHERE job_id = $1";

/// The reports before an iteration.
pub(crate) const OLD_REPORTS: &str = "SELECT *, CAST(drivers AS TEXT) AS drivers_text FROM report
    WHERE job_id = $1 AND iteration < $2 ORDER BY iteration, worker";

/// The allocations before an iteration.
pub(crate) const OLD_ANSWERS: &str = "SELECT iteration, at_unix_ms, answer FROM allocation
    WHERE job_id = $1 AND iteration < $2 ORDER BY iteration, generation";

impl Store {
    /// Returns a roll-up of some of a job's oldest iterations, whose reports and allocations were all stored
    /// before a given time; `None` if there are no such iterations. The last `keep_iterations` allocated and
    /// reported iterations are kept.
    ///
    /// # Errors
    /// See [`Store::old_samples`].
    pub async fn old_iterations(
        &self,
        job_id: &JobId,
        before_unix_ms: i64,
        keep_iterations: u64,
    ) -> Result<Option<RollUp>, StoreError> {
        let span = rows!(&self.readers, Span, SPAN, job_id.as_str(),)?;
        let Some((span, [first, end])) =
            span.into_iter().next().and_then(|span| Some((span.kept_from, span.slice(keep_iterations)?)))
        else {
            return Ok(None);
        };
        let reports = rows!(&self.readers, TimedReport, OLD_REPORTS, job_id.as_str(), end,)?;
        let answers = rows!(&self.readers, (i64, i64, Json), OLD_ANSWERS, job_id.as_str(), end,)?;
        // Ends before the first iteration with a row that has not expired.
        let times = answers.iter().map(|(iteration, at_unix_ms, _)| (*iteration, *at_unix_ms));
        let times = times.chain(reports.iter().map(|row| (row.report.iteration, row.at_unix_ms)));
        let young =
            times.filter(|(_, at_unix_ms)| *at_unix_ms >= before_unix_ms).map(|(iteration, _)| iteration);
        let end = young.min().unwrap_or(end);
        if end <= first {
            return Ok(None);
        }
        let mut rolled = Iterations::default();
        answers.iter().filter(|(iteration, ..)| *iteration < end).for_each(|row| rolled.answer(row));
        reports.into_iter().filter(|row| row.report.iteration < end).for_each(|row| rolled.report(row));
        Ok(Some(RollUp::Iterations {
            job_id: job_id.clone(),
            kept_from: span.cast_unsigned(),
            keep_from: end.max(span).cast_unsigned(),
            reports: rolled.reports,
            answers: rolled.answers,
            minutes: rolled.minutes,
        }))
    }
}

/// Bounds of the iterations of a job.
struct Span {
    kept_from: i64,
    first_answer: Option<i64>,
    first_report: Option<i64>,
    last_answer: Option<i64>,
    last_report: Option<i64>,
    workers: i64,
}

from_row!(Span { kept_from, first_answer, first_report, last_answer, last_report, workers });

impl Span {
    /// Returns the first stored iteration, and the end of the range that one roll-up may delete.
    fn slice(&self, keep_iterations: u64) -> Option<[i64; 2]> {
        let first = self.first_answer.into_iter().chain(self.first_report).min()?;
        let last = self.last_answer.into_iter().chain(self.last_report).min()?;
        let stays = last.saturating_add(1).saturating_sub(integer(keep_iterations));
        let iterations = integer(SLICE_ROWS as u64) / self.workers.saturating_add(1);
        let end = first.saturating_add(iterations.max(1)).min(stays);
        (end > first).then_some([first, end])
    }
}

struct TimedReport {
    at_unix_ms: i64,
    report: ReportRow,
}

from_row!(TimedReport { at_unix_ms; whole: report });

/// Roll-up of iterations under construction.
#[derive(Default)]
struct Iterations {
    latest_allocations: BTreeMap<i64, AllocateResponse>,
    answers: u64,
    reports: u64,
    minutes: BTreeMap<WorkerStep, WorkerSums>,
}

impl Iterations {
    /// Adds an allocation. If an iteration has several, the latest generation must come last. One that cannot be read
    /// predicts nothing.
    fn answer(&mut self, (iteration, _, answer): &(i64, i64, Json)) {
        self.answers += 1;
        if let Ok(answer) = answer.read("answer") {
            self.latest_allocations.insert(*iteration, answer);
        }
    }

    /// Adds a report, if it can be read. All allocations must have been added before.
    fn report(&mut self, row: TimedReport) {
        self.reports += 1;
        let Ok(report) = WorkerReport::try_from(row.report) else { return };
        let answer = self.latest_allocations.get(&integer(report.iteration));
        let predicted = answer.and_then(|answer| predicted_time_s(answer, &report.worker));
        let step = WorkerStep {
            worker: report.worker.to_string(),
            step_s: MINUTE_S,
            at_unix_ms: step_start(row.at_unix_ms, MINUTE_S),
        };
        self.minutes.entry(step).or_default().add(&report, predicted);
    }
}

//! A period of a job's history in columns, thinned out for a chart.

use std::collections::BTreeMap;
use std::ops::Range;

use evenstep_core::job::JobState;
use evenstep_protocol::{AllocateResponse, HistoryView, JobId, WorkerHistory, WorkerId};
use evenstep_store::{EveryNth, Measured, Store};

use super::error::JobError;
use super::job::Job;
use super::live::MeanLoss;

/// Limit of shares in one response. Jobs with many workers get fewer iterations.
const SHARES_MAX: u64 = 32_768;
/// Smallest number of iterations in one response.
const POINTS_MIN: u64 = 8;
/// Significant digits that a chart can show.
const DIGITS: usize = 4;

/// A period of time, in milliseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub struct Period {
    /// Its beginning.
    pub from_unix_ms: i64,
    /// Its end; `None` for all iterations after the beginning.
    pub until_unix_ms: Option<i64>,
}

impl Period {
    /// The seconds before now.
    pub fn last(since_s: u64, now_unix_ms: i64) -> Self {
        let since_ms = i64::try_from(since_s.saturating_mul(1000)).unwrap_or(i64::MAX);
        Self { from_unix_ms: now_unix_ms.saturating_sub(since_ms), until_unix_ms: None }
    }
}

impl Job {
    /// Returns up to `points` evenly sampled iterations of a period.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn history(&self, period: Period, points: u64) -> Result<HistoryView, JobError> {
        // Known once the job is in memory.
        let workers = |state: &JobState| {
            let last = state.last_allocation.as_ref().map_or(0, |answer| answer.allocations.len());
            last.max(state.live().len()).max(1) as u64
        };
        let workers = self.look(workers).await?;
        let mut iterations = self.store().iterations_since(self.id(), period.from_unix_ms).await?;
        if let Some(until) = period.until_unix_ms {
            iterations.end =
                self.store().iterations_since(self.id(), until).await?.start.max(iterations.start);
        }
        read(self.store(), self.id(), iterations, points, workers).await
    }
}

/// Reads up to `points` evenly sampled iterations of a range, in which about `workers` workers took part.
///
/// # Errors
/// An error of the store.
pub(super) async fn read(
    store: &Store,
    job_id: &JobId,
    iterations: Range<u64>,
    points: u64,
    workers: u64,
) -> Result<HistoryView, JobError> {
    let points = points.min((SHARES_MAX / workers.max(1)).max(POINTS_MIN));
    let every = (iterations.end.saturating_sub(iterations.start)).div_ceil(points).max(1);
    let wanted = EveryNth { iterations, every };
    let mut columns = Columns::default();
    for (at_unix_ms, stored) in store.every_nth_allocation(job_id, &wanted).await? {
        columns.answer(stored.iteration, at_unix_ms, &stored.parse()?);
    }
    for report in store.every_nth_report(job_id, &wanted).await? {
        columns.report(&report);
    }
    Ok(columns.view(job_id, every))
}

/// One worker's share of an iteration.
#[derive(Debug, Clone, Default)]
struct Cell {
    local_batch: Option<u64>,
    predicted: Option<f64>,
    lower: Option<f64>,
    upper: Option<f64>,
    actual: Option<f64>,
    compute_time_s: Option<f64>,
    barrier_wait_s: Option<f64>,
}

#[derive(Debug, Default)]
struct Columns {
    iterations: Vec<u64>,
    at_unix_ms: Vec<i64>,
    step_time_s: Vec<Option<f64>>,
    predicted_step_time_s: Vec<Option<f64>>,
    even_step_time_s: Vec<Option<f64>>,
    lr_multiplier: Vec<Option<f64>>,
    loss: Vec<MeanLoss>,
    workers: BTreeMap<WorkerId, Vec<Cell>>,
}

impl Columns {
    fn answer(&mut self, iteration: u64, at_unix_ms: i64, answer: &AllocateResponse) {
        let at = self.iterations.len();
        self.iterations.push(iteration);
        self.at_unix_ms.push(at_unix_ms);
        self.step_time_s.push(None);
        self.predicted_step_time_s.push(answer.decision.predicted_step_time_s.map(rounded));
        self.even_step_time_s.push(answer.decision.even_step_time_s.map(rounded));
        self.lr_multiplier.push(Some(rounded(answer.optimizer.lr_multiplier)));
        self.loss.push(MeanLoss::default());
        for share in &answer.allocations {
            let cells = self.workers.entry(share.worker.clone()).or_default();
            cells.resize(at + 1, Cell::default());
            if let Some(cell) = cells.last_mut() {
                cell.local_batch = Some(share.local_batch);
                cell.predicted = share.predicted_speed_samples_per_s.map(rounded);
                cell.lower = share.speed_lower_samples_per_s.map(rounded);
                cell.upper = share.speed_upper_samples_per_s.map(rounded);
            }
        }
    }

    /// Adds a report of an iteration whose allocation is in the table.
    fn report(&mut self, report: &Measured) {
        let Ok(at) = self.iterations.binary_search(&report.iteration) else { return };
        let waiting_s = report.barrier_wait_s.unwrap_or(0.0) + report.loader_wait_s.unwrap_or(0.0);
        let took_s = rounded(report.compute_time_s + waiting_s);
        let longest = &mut self.step_time_s[at];
        *longest = Some(longest.map_or(took_s, |longest: f64| longest.max(took_s)));
        if let Some(loss) = report.loss {
            self.loss[at].add(report.local_batch, loss);
        }
        let Some(cell) = self.workers.get_mut(&report.worker).and_then(|cells| cells.get_mut(at)) else {
            return;
        };
        let shows_speed = report.local_batch > 0 && report.compute_time_s > 0.0;
        cell.actual = shows_speed.then(|| rounded(report.local_batch as f64 / report.compute_time_s));
        cell.compute_time_s = Some(rounded(report.compute_time_s));
        cell.barrier_wait_s = report.barrier_wait_s.map(rounded);
    }

    fn view(self, job_id: &JobId, every: u64) -> HistoryView {
        let length = self.iterations.len();
        let worker = |(worker, mut cells): (WorkerId, Vec<Cell>)| {
            cells.resize(length, Cell::default());
            let column = |of: fn(&Cell) -> Option<f64>| cells.iter().map(of).collect();
            WorkerHistory {
                worker,
                local_batch: cells.iter().map(|cell| cell.local_batch).collect(),
                predicted_samples_per_s: column(|cell| cell.predicted),
                lower_samples_per_s: column(|cell| cell.lower),
                upper_samples_per_s: column(|cell| cell.upper),
                actual_samples_per_s: column(|cell| cell.actual),
                compute_time_s: column(|cell| cell.compute_time_s),
                barrier_wait_s: column(|cell| cell.barrier_wait_s),
            }
        };
        HistoryView {
            job_id: job_id.clone(),
            every,
            iterations: self.iterations,
            at_unix_ms: self.at_unix_ms,
            step_time_s: self.step_time_s,
            predicted_step_time_s: self.predicted_step_time_s,
            even_step_time_s: self.even_step_time_s,
            lr_multiplier: self.lr_multiplier,
            loss: self.loss.into_iter().map(|mean| mean.value().map(rounded)).collect(),
            workers: self.workers.into_iter().map(worker).collect(),
        }
    }
}

/// Rounds to four significant digits, which keeps the response small.
fn rounded(value: f64) -> f64 {
    format!("{value:.*e}", DIGITS - 1).parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn four_digits_are_left() {
        assert_eq!([1234.567, 0.000_123_456, -9.999_96, 0.0].map(rounded), [1235.0, 0.000_123_5, -10.0, 0.0]);
    }
}

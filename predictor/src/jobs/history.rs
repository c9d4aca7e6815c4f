//! A period of a job's history in columns, thinned out for a chart.

use std::collections::HashMap;
use std::ops::Range;

use evenstep_protocol::{HistoryView, JobId, WorkerHistory, WorkerId};
use evenstep_store::{EveryNth, View};

use super::error::JobError;
use super::job::Job;
use super::live::Account;
use super::shown::{Shown, ShownWorker};
use crate::long::compute;

/// Limit of shares in one response. Jobs with many workers get fewer iterations.
const SHARES_MAX: u64 = 32_768;
/// Approximate size of a share in the store, in bytes.
const SHARE_BYTES: u64 = 48;
/// Smallest number of iterations in one response.
const POINTS_MIN: u64 = 8;

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
        if self.is_deleted() {
            return Err(JobError::UnknownJob(self.id().clone()));
        }
        let mut view = self.store().view().await?;
        let mut iterations = view.iterations_since(self.id(), period.from_unix_ms).await?;
        if let Some(until) = period.until_unix_ms {
            iterations.end = view.iterations_since(self.id(), until).await?.start.max(iterations.start);
        }
        let workers = workers_before(&mut view, self.id(), iterations.end).await?;
        let sampled = Sampled::read(&mut view, self.id(), iterations, points, workers).await?;
        // Other viewers may have the connection.
        drop(view);
        Ok(compute(true, || sampled.view(self.id())))
    }
}

/// Returns about the number of workers in the last iteration before another one; 1 without an earlier iteration.
///
/// # Errors
/// An error of the store.
pub(super) async fn workers_before(view: &mut View, job_id: &JobId, end: u64) -> Result<u64, JobError> {
    if let Some(bytes) = view.latest_size(job_id, end).await? {
        return Ok(bytes.div_ceil(SHARE_BYTES));
    }
    let Some(last) = end.checked_sub(1) else { return Ok(1) };
    let Some((_, stored)) = view.allocation(job_id, last).await? else { return Ok(1) };
    Ok(compute(true, || stored.parse())?.allocations.len() as u64)
}

/// Evenly sampled iterations, with the times of their allocations in milliseconds since 1970.
#[derive(Debug)]
pub(super) struct Sampled {
    every: u64,
    steps: Vec<(u64, i64, Shown)>,
}

impl Sampled {
    /// Reads up to `points` evenly sampled iterations of a range, whose last allocation has `workers` workers.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn read(
        view: &mut View,
        job_id: &JobId,
        iterations: Range<u64>,
        points: u64,
        workers: u64,
    ) -> Result<Self, JobError> {
        let length = iterations.end.saturating_sub(iterations.start);
        let every = |points: u64| length.div_ceil(points).max(1);
        let most = points.min((SHARES_MAX / workers.max(1)).max(POINTS_MIN));
        let mut wanted = EveryNth { iterations, every: every(most) };
        // The job may have had more workers earlier.
        let bytes = view.every_nth_size(job_id, &wanted).await?;
        let fewer = most.saturating_mul(SHARES_MAX * SHARE_BYTES) / bytes.max(1);
        wanted.every = every(fewer.clamp(POINTS_MIN.min(most), most));
        let stored = view.every_nth_step(job_id, &wanted).await?;
        // Iterations that cannot be read are computed, like those that are not stored.
        let parse =
            |(at_unix_ms, shown): (i64, String)| Some((at_unix_ms, serde_json::from_str(&shown).ok()?));
        let parsed: Vec<(u64, Option<(i64, Shown)>)> = compute(true, || {
            stored.into_iter().map(|(iteration, stored)| (iteration, stored.and_then(parse))).collect()
        });
        let mut steps = Vec::with_capacity(parsed.len());
        for (iteration, stored) in parsed {
            if let Some((at_unix_ms, shown)) = stored {
                steps.push((iteration, at_unix_ms, shown));
            } else if let Some((at_unix_ms, answer)) = view.allocation(job_id, iteration).await? {
                let reports = view.measured(job_id, iteration).await?;
                let shown = compute(true, || Ok::<_, JobError>(Shown::stored(&answer.parse()?, &reports)))?;
                steps.push((iteration, at_unix_ms, shown));
            }
        }
        Ok(Self { every: wanted.every, steps })
    }

    /// The account of the iterations before iteration `end` and after iteration `before`.
    pub fn account(&self, before: Option<u64>, end: u64) -> Account {
        let times = self.steps.iter().filter_map(|(iteration, _, shown)| Some((*iteration, shown.times()?)));
        Account::of(times, self.every, before, end)
    }

    /// The iterations in columns. Takes milliseconds for a job with many workers.
    pub fn view(self, job_id: &JobId) -> HistoryView {
        let mut columns = Columns { length: self.steps.len(), ..Columns::default() };
        let mut view = HistoryView {
            job_id: job_id.clone(),
            every: self.every,
            iterations: Vec::with_capacity(columns.length),
            at_unix_ms: Vec::with_capacity(columns.length),
            step_time_s: Vec::with_capacity(columns.length),
            predicted_step_time_s: Vec::with_capacity(columns.length),
            even_step_time_s: Vec::with_capacity(columns.length),
            lr_multiplier: Vec::with_capacity(columns.length),
            loss: Vec::with_capacity(columns.length),
            workers: Vec::new(),
        };
        for (at, (iteration, at_unix_ms, shown)) in self.steps.iter().enumerate() {
            view.iterations.push(*iteration);
            view.at_unix_ms.push(*at_unix_ms);
            view.step_time_s.push(shown.step_time_s);
            view.predicted_step_time_s.push(shown.predicted_step_time_s);
            view.even_step_time_s.push(shown.even_step_time_s);
            view.lr_multiplier.push(Some(shown.lr_multiplier));
            view.loss.push(shown.loss);
            for (rank, worker) in shown.workers.iter().enumerate() {
                columns.add(at, rank, worker);
            }
        }
        view.workers = columns.workers;
        view.workers.sort_by(|one, other| one.worker.cmp(&other.worker));
        view
    }
}

/// The columns of all workers.
#[derive(Debug, Default)]
struct Columns {
    /// Number of iterations.
    length: usize,
    workers: Vec<WorkerHistory>,
    places: HashMap<WorkerId, usize>,
}

impl Columns {
    /// Adds a worker of an iteration. Ranks are alike in most iterations, so the place of the rank is tried first.
    fn add(&mut self, at: usize, rank: usize, shown: &ShownWorker) {
        let place = match self.workers.get(rank) {
            Some(known) if known.worker == shown.worker => rank,
            _ => self.place(&shown.worker),
        };
        let Some(worker) = self.workers.get_mut(place) else { return };
        worker.local_batch[at] = Some(shown.local_batch);
        worker.predicted_samples_per_s[at] = shown.predicted;
        worker.lower_samples_per_s[at] = shown.lower;
        worker.upper_samples_per_s[at] = shown.upper;
        worker.actual_samples_per_s[at] = shown.actual;
        worker.compute_time_s[at] = shown.compute_time_s;
        worker.barrier_wait_s[at] = shown.barrier_wait_s;
    }

    fn place(&mut self, worker: &WorkerId) -> usize {
        if let Some(place) = self.places.get(worker) {
            return *place;
        }
        let none = || vec![None; self.length];
        self.workers.push(WorkerHistory {
            worker: worker.clone(),
            local_batch: vec![None; self.length],
            predicted_samples_per_s: none(),
            lower_samples_per_s: none(),
            upper_samples_per_s: none(),
            actual_samples_per_s: none(),
            compute_time_s: none(),
            barrier_wait_s: none(),
        });
        self.places.insert(worker.clone(), self.workers.len() - 1);
        self.workers.len() - 1
    }
}

//! Reads a period of a job's history, thinned out for a chart.

use std::ops::Range;

use evenstep_core::attempts::Attempts;
use evenstep_protocol::{HistoryView, JobId};
use evenstep_store::{EveryNth, View};

use super::super::account::Account;
use super::super::shown::Shown;
use super::super::view;
use crate::jobs::error::JobError;
use crate::jobs::job::Job;
use crate::jobs::load::attempts;
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
        let mut reading = self.store().view().await?;
        let mut iterations = reading.iterations_since(self.id(), period.from_unix_ms).await?;
        if let Some(until) = period.until_unix_ms {
            iterations.end = reading.iterations_since(self.id(), until).await?.start.max(iterations.start);
        }
        let workers = workers_before(&mut reading, self.id(), iterations.end).await?;
        let attempts = attempts(reading.segments(self.id()).await?);
        let points = attempts.points(&iterations, points);
        let mut sampled = Sampled::read(&mut reading, self.id(), iterations, points, workers).await?;
        sampled.steps.retain(|(position, ..)| !attempts.is_superseded(*position));
        // Other viewers may have the connection.
        drop(reading);
        Ok(compute(true, || view::history(self.id(), sampled.every, &attempts, &sampled.steps)))
    }
}

/// Returns about the number of workers in the last iteration before another one; 1 without an earlier iteration.
///
/// # Errors
/// An error of the store.
pub async fn workers_before(view: &mut View, job_id: &JobId, end: u64) -> Result<u64, JobError> {
    if let Some(bytes) = view.latest_size(job_id, end).await? {
        return Ok(bytes.div_ceil(SHARE_BYTES));
    }
    let Some(last) = end.checked_sub(1) else { return Ok(1) };
    let Some((_, stored)) = view.allocation(job_id, last).await? else { return Ok(1) };
    Ok(compute(true, || stored.parse()).map_or(1, |last| last.allocations.len() as u64))
}

/// Evenly sampled iterations, with the times of their allocations in milliseconds since 1970.
#[derive(Debug)]
pub struct Sampled {
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
                // Without an unreadable allocation, the chart has a gap.
                let shown = compute(true, || Some(Shown::stored(&answer.parse().ok()?, &reports)));
                steps.extend(shown.map(|shown| (iteration, at_unix_ms, shown)));
            }
        }
        Ok(Self { every: wanted.every, steps })
    }

    /// The account of the iterations before position `end` and after position `before`.
    pub fn account(&self, attempts: &Attempts, before: Option<u64>, end: u64) -> Account {
        let times = self.steps.iter().filter_map(|(iteration, _, shown)| Some((*iteration, shown.times()?)));
        Account::of(times, attempts, self.every, before, end)
    }
}

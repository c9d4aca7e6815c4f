//! Starts the leases and restores the statistics of jobs after a restart or a change of their owner, and stores them for that and for charts.
//!
//! A chart of 1,024 workers would read megabytes of allocations, so each completed iteration is also stored as charts
//! show it. This and the totals of a job follow from allocations and reports, and are computed from them if they are
//! missing.

use std::sync::Arc;

use evenstep_protocol::WorkerReport;
use evenstep_store::{Change, EveryNth, ShownStep, Store, View};

use super::error::JobError;
use super::job::Job;
use super::leases::Leases;
use super::load::attempts;
use super::registry::Jobs;
use super::watch::{Sampled, Shown, Steps, Totals, Unstored, workers_before};
use crate::long::compute;

/// Maximum number of iterations that are read to continue stored totals. Of more, some are read that stand for all.
const ACCOUNT_POINTS: u64 = 1_000;
/// Number of jobs without state in memory whose statistics are read from their history, the newest first.
const STORED_MAX: usize = 256;
/// Approximate size of the changes of one transaction, in bytes.
const BATCH_BYTES: usize = 1 << 20;

impl Job {
    /// Restores the totals and the latest iterations of the job, unless that was done before.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn restore(&self) -> Result<(), JobError> {
        if self.live().is_restored() {
            return Ok(());
        }
        let (job_id, followed_from) = (self.id(), self.live().restored_until());
        let mut view = self.store().view().await?;
        let Some((reported, reported_unix_ms)) = view.past(job_id).await?.reported else {
            self.live().restore(Totals::none(), Steps::default(), followed_from);
            return Ok(());
        };
        let mut totals =
            view.totals(job_id).await?.as_deref().and_then(Totals::read).unwrap_or_else(Totals::none);
        let all = view.iterations_since(job_id, i64::MIN).await?;
        let mut end = (reported + 1).min(followed_from).max(all.start);
        let workers = workers_before(&mut view, job_id, end).await?;
        let mut steps =
            self.latest_steps(&mut view, all.start..end, workers, (reported, reported_unix_ms)).await?;
        totals.means = steps.means().or(totals.means);
        // Only jobs in memory show their latest iterations, and complete those that some workers have reported.
        if self.is_loaded() && self.live().has_no_steps() {
            end = steps.first_open().unwrap_or(end).min(end);
        } else {
            steps = Steps::default();
        }
        let from = totals.until.max(all.start);
        if from < end {
            let sampled = Sampled::read(&mut view, job_id, from..end, ACCOUNT_POINTS, workers).await?;
            let before = from.checked_sub(1).filter(|_| totals.until > 0);
            let attempts = attempts(view.segments(job_id).await?);
            totals.account.append(&sampled.account(&attempts, before, end));
            totals.until = end;
        }
        drop(view);
        self.live().restore(totals, steps, followed_from);
        Ok(())
    }

    /// Reads the latest iterations of a range. `reported` is the latest reported iteration and its time, in milliseconds
    /// since 1970.
    async fn latest_steps(
        &self,
        view: &mut View,
        iterations: std::ops::Range<u64>,
        workers: u64,
        reported: (u64, i64),
    ) -> Result<Steps, JobError> {
        let from = iterations.end.saturating_sub(Steps::room(workers as usize)).max(iterations.start);
        let recent = EveryNth { iterations: from..iterations.end, every: 1 };
        let (mut steps, mut shown) = (Steps::default(), Vec::new());
        for (iteration, stored) in view.every_nth_step(self.id(), &recent).await? {
            let even = stored.as_ref().and_then(|(_, stored)| {
                serde_json::from_str(stored).ok().and_then(|shown: Shown| shown.even())
            });
            shown.extend(stored.map(|_| iteration));
            let Some((answered_unix_ms, stored)) = view.allocation(self.id(), iteration).await? else {
                continue;
            };
            // Without an unreadable allocation, the chart has a gap.
            let Ok(mut answer) = compute(true, || stored.parse()) else { continue };
            // It holds until the next one.
            answer.iteration = iteration;
            steps.answered(Arc::new(answer), answered_unix_ms);
            let at_unix_ms = if iteration == reported.0 { reported.1 } else { answered_unix_ms };
            for done in view.measured(self.id(), iteration).await? {
                let report = WorkerReport {
                    barrier_wait_s: done.barrier_wait_s,
                    loader_wait_s: done.loader_wait_s,
                    step_time_s: done.step_time_s,
                    iterations: done.iterations,
                    loss: done.loss,
                    ..WorkerReport::new(done.worker, iteration, done.local_batch, done.compute_time_s)
                };
                steps.reported(&report, at_unix_ms, 0);
            }
            steps.restore_even(iteration, even);
        }
        steps.close();
        steps.all_stored(&shown);
        Ok(steps)
    }
}

impl Jobs {
    /// Starts the leases of the workers in the store, because their jobs may never be requested again. Jobs in a
    /// shared store may belong to other predictors, which check their leases.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn start_leases(&self) -> Result<(), JobError> {
        if self.store().is_shared() {
            return Ok(());
        }
        let (registration, now_ms) = (self.store().registration()?, self.now().steady_ms);
        let stored = self.store().view().await?.job_summaries().await?;
        for stored in stored.iter().filter(|stored| stored.live_workers > 0) {
            let Some(spec) = &stored.spec else { continue };
            let mut jobs = self.write();
            let job = jobs.entry(stored.job_id.clone());
            let job = job.or_insert_with(|| self.new_job(&stored.job_id, registration));
            if !job.is_loaded() {
                job.rest(Leases::full((spec.lease_s * 1e3) as i64, now_ms));
            }
        }
        Ok(())
    }

    /// Restores the statistics of all jobs that are in memory or were listed, the newest first. A job that cannot be
    /// restored is tried again later.
    pub async fn restore(&self) {
        let now_ms = self.now().steady_ms;
        let is_due = |job: &Arc<Job>| job.live().may_restore(now_ms);
        let in_memory = self.all().into_iter().filter(|job| job.is_loaded() && is_due(job));
        let mut stored = self.stored();
        stored.retain(is_due);
        stored.sort_by_cached_key(|job| std::cmp::Reverse(job.live().reported_unix_ms()));
        stored.truncate(STORED_MAX);
        for job in in_memory.chain(stored) {
            match job.restore().await {
                // Deleted in the meantime.
                Ok(()) | Err(JobError::UnknownJob(_)) => {}
                Err(error) => {
                    tracing::warn!(job_id = %job.id(), %error, "cannot restore the statistics of a job from the store");
                    job.live().restore_failed(self.now().steady_ms);
                }
            }
        }
    }

    /// Stores for charts the iterations that were completed since the last call.
    ///
    /// # Errors
    /// An error of the store. The iterations that are still in memory are stored at the next call then.
    pub async fn store_steps(&self) -> Result<(), JobError> {
        let mut batch = Batch::of(self)?;
        for job in batch.own(self.all()) {
            let unstored = job.live().unstored_steps();
            if unstored.is_empty() {
                continue;
            }
            let created_unix_ms = job.live().created_unix_ms();
            let steps: Vec<Option<ShownStep>> = compute(true, || unstored.iter().map(shown).collect());
            for (step, unstored) in steps.into_iter().zip(unstored) {
                let (job, steps) = (job.clone(), step.into_iter().collect());
                let change = Change::Steps { job_id: job.id().clone(), created_unix_ms, steps };
                batch.add(change, move || job.live().stored_steps(&[unstored])).await?;
            }
        }
        batch.write().await
    }

    /// Stores the totals of the jobs that have new ones.
    ///
    /// # Errors
    /// An error of the store. The totals are stored at the next call then.
    pub async fn store_totals(&self) -> Result<(), JobError> {
        let mut batch = Batch::of(self)?;
        // Jobs that are only listed may belong to other predictors.
        for job in batch.own(self.all()) {
            let Some((totals, version)) = job.live().new_totals() else { continue };
            let Some(totals) = totals.write() else { continue };
            let (job_id, created_unix_ms) = (job.id().clone(), job.live().created_unix_ms());
            let change = Change::Totals { job_id, created_unix_ms, totals };
            batch.add(change, move || job.live().stored_totals(version)).await?;
        }
        batch.write().await
    }
}

/// Changes of several jobs that are written together: a commit for each job would keep the disk busy.
struct Batch<'a> {
    store: Store,
    registration: u64,
    now_unix_ms: i64,
    changes: Vec<Change>,
    bytes: usize,
    /// Called once the changes are durable.
    written: Vec<Box<dyn FnOnce() + Send + 'a>>,
}

impl<'a> Batch<'a> {
    /// An empty batch under the present registration.
    ///
    /// # Errors
    /// The lease has expired.
    fn of(jobs: &Jobs) -> Result<Self, JobError> {
        let registration = jobs.store().registration()?;
        Ok(Self {
            store: jobs.store().of_registration(registration),
            registration,
            now_unix_ms: jobs.now().unix_ms,
            changes: Vec::new(),
            bytes: 0,
            written: Vec::new(),
        })
    }

    /// The jobs of the registration.
    fn own(&self, jobs: impl IntoIterator<Item = Arc<Job>>) -> Vec<Arc<Job>> {
        jobs.into_iter().filter(|job| job.registration() == self.registration).collect()
    }

    /// Adds a change, and writes the batch if it is large.
    ///
    /// # Errors
    /// An error of the store.
    async fn add(&mut self, change: Change, written: impl FnOnce() + Send + 'a) -> Result<(), JobError> {
        self.bytes += change.bytes();
        self.changes.push(change);
        self.written.push(Box::new(written));
        if self.bytes < BATCH_BYTES { Ok(()) } else { self.write().await }
    }

    /// Writes the changes.
    ///
    /// # Errors
    /// An error of the store.
    async fn write(&mut self) -> Result<(), JobError> {
        if !self.changes.is_empty() {
            self.store.write(std::mem::take(&mut self.changes), self.now_unix_ms).await?;
            self.written.drain(..).for_each(|written| written());
            self.bytes = 0;
        }
        Ok(())
    }
}

/// Encodes an iteration for charts; `None` if a number has no JSON.
fn shown(unstored: &Unstored) -> Option<ShownStep> {
    let shown = Shown::of(&unstored.answer, unstored.even, |rank| unstored.done.get(rank).copied().flatten());
    Some(ShownStep {
        iteration: unstored.answer.iteration,
        at_unix_ms: unstored.answered_unix_ms,
        shown: serde_json::to_string(&shown).ok()?,
    })
}

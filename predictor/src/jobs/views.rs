//! Read access to a job.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenstep_core::job::JobState;
use evenstep_protocol::{
    AllocateResponse, Allocation, ForecastView, JobView, SpeedPoint, SpeedsView, SummaryView, WorkerId,
    WorkerReport, WorkersView,
};
use evenstep_store::StoredAllocation;

use super::describe;
use super::error::JobError;
use super::history::Period;
use super::job::Job;
use crate::long::compute;
use crate::summary::{Workers, summarize};

/// The history of a summary: a year, in at most this many iterations.
const SUMMARY_S: u64 = 366 * 86_400;
const SUMMARY_POINTS: u64 = 1_000;

impl Job {
    /// Returns the summary of the job.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn view(self: &Arc<Self>) -> Result<JobView, JobError> {
        let guard = self.lock().await?;
        Ok(describe::job(guard.state(), self.id(), self.live(), guard.now_unix_ms))
    }

    /// Returns every worker that ever joined.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn workers(self: &Arc<Self>) -> Result<WorkersView, JobError> {
        self.look(|state| describe::workers(state, self.id())).await
    }

    /// Returns what the job gained, and its slow workers.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn summary(self: &Arc<Self>) -> Result<SummaryView, JobError> {
        let history = self.history(Period::last(SUMMARY_S, self.now_unix_ms()), SUMMARY_POINTS).await?;
        let workers = self.look(|state| Workers {
            views: describe::workers(state, self.id()).workers,
            curves: describe::curves(state),
        });
        let workers = workers.await?;
        self.restore().await?;
        let account = self.live().account().unwrap_or_default();
        // Iterations are planned ahead, so those that were reported count.
        let reported = self.live().line(self.id(), self.now_unix_ms()).iteration;
        let iterations = reported.map_or(0, |newest| newest.saturating_add(1));
        Ok(compute(true, move || summarize(&history, &account, &workers, iterations)))
    }

    /// Returns the forecast of each live worker.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn forecast(self: &Arc<Self>) -> Result<ForecastView, JobError> {
        self.look(|state| describe::forecast(state, self.id(), self.fits().view())).await
    }

    /// Returns up to `limit` allocations, from iteration `from` on.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn allocations(&self, from: u64, limit: u64) -> Result<Vec<AllocateResponse>, JobError> {
        let stored = self.store().view().await?.answers(self.id(), from, limit).await?;
        Ok(compute(true, || stored.iter().map(StoredAllocation::parse).collect::<Result<_, _>>())?)
    }

    /// Returns predicted and actual speeds of up to `limit` iterations from iteration `from` on, of one
    /// worker or of all.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn speeds(
        &self,
        worker: Option<&WorkerId>,
        from: u64,
        limit: u64,
    ) -> Result<SpeedsView, JobError> {
        // An iteration without an allocation, because a request failed or was late, has the shares of the one before.
        let mut view = self.store().view().await?;
        let before = match from.checked_sub(1) {
            Some(last) => view.allocation(self.id(), last).await?,
            None => None,
        };
        let mut stored = Vec::from_iter(before.map(|(_, stored)| stored));
        stored.extend(view.answers(self.id(), from, limit).await?);
        let reports = view.reports_from(self.id(), from, limit).await?;
        drop(view);
        compute(true, || self.compared(worker, &stored, reports))
    }

    /// The speeds of reports, with the predictions of the allocations that they were computed with.
    fn compared(
        &self,
        worker: Option<&WorkerId>,
        stored: &[StoredAllocation],
        reports: Vec<WorkerReport>,
    ) -> Result<SpeedsView, JobError> {
        let answers: Vec<AllocateResponse> =
            stored.iter().map(StoredAllocation::parse).collect::<Result<_, _>>()?;
        let predicted: BTreeMap<u64, BTreeMap<&WorkerId, &Allocation>> = answers
            .iter()
            .map(|answer| {
                let shares = answer.allocations.iter().map(|share| (&share.worker, share)).collect();
                (answer.iteration, shares)
            })
            .collect();
        let speeds = reports
            .into_iter()
            .filter(|report| worker.is_none_or(|worker| *worker == report.worker))
            .map(|report| {
                let predicted = predicted
                    .range(..=report.iteration)
                    .next_back()
                    .and_then(|(_, shares)| shares.get(&report.worker));
                SpeedPoint {
                    iteration: report.iteration,
                    local_batch: report.local_batch,
                    actual_samples_per_s: (report.local_batch > 0)
                        .then(|| report.local_batch as f64 / report.compute_time_s),
                    predicted_samples_per_s: predicted.and_then(|share| share.predicted_speed_samples_per_s),
                    lower_samples_per_s: predicted.and_then(|share| share.speed_lower_samples_per_s),
                    upper_samples_per_s: predicted.and_then(|share| share.speed_upper_samples_per_s),
                    compute_time_s: report.compute_time_s,
                    barrier_wait_s: report.barrier_wait_s,
                    worker: report.worker,
                }
            })
            .collect();
        Ok(SpeedsView { job_id: self.id().clone(), speeds })
    }

    pub(super) async fn look<T>(self: &Arc<Self>, look: impl FnOnce(&JobState) -> T) -> Result<T, JobError> {
        Ok(look(self.lock().await?.state()))
    }
}

//! Read access to a job.

use std::ops::Range;
use std::sync::Arc;

use evenstep_core::attempts::Iteration;
use evenstep_core::job::JobState;
use evenstep_protocol::{
    AllocateResponse, ForecastView, JobView, SpeedsView, SummaryView, WorkerId, WorkersView,
};
use evenstep_store::StoredAllocation;

use super::super::view;
use super::super::view::{SummaryInputs, Told, summarize};
use super::history::Period;
use crate::jobs::error::JobError;
use crate::jobs::job::Job;
use crate::jobs::load::attempts;
use crate::long::compute;

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
        Ok(view::job(guard.state(), self.id(), self.live(), guard.now))
    }

    /// Returns every worker that ever joined.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn workers(self: &Arc<Self>) -> Result<WorkersView, JobError> {
        self.look(|state| view::workers(state, self.id(), self.now())).await
    }

    /// Returns what the job gained, and its slow workers.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn summary(self: &Arc<Self>) -> Result<SummaryView, JobError> {
        let history = self.history(Period::last(SUMMARY_S, self.now().unix_ms), SUMMARY_POINTS).await?;
        let workers = self.look(|state| SummaryInputs {
            views: view::workers(state, self.id(), self.now()).workers,
            curves: view::curves(state),
        });
        let workers = workers.await?;
        self.restore().await?;
        let (account, told) = {
            let (seen, now) = (self.live().lock(), self.now());
            let account = seen.account();
            // Iterations are planned ahead, so those that were reported count.
            let after = |(newest, _)| seen.attempts.at(newest).iteration.saturating_add(1);
            let told = Told {
                iterations: seen.reported().map_or(0, after),
                unit: seen.unit().to_owned(),
                error_ratio: seen.means().and_then(|means| means.error_ratio),
                verdict: view::verdict(&seen, &seen.status(now), account.as_ref(), now),
            };
            (account.unwrap_or_default(), told)
        };
        Ok(compute(true, move || summarize(&history, &account, &workers, told)))
    }

    /// Returns the forecast of each live worker.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn forecast(self: &Arc<Self>) -> Result<ForecastView, JobError> {
        self.look(|state| view::forecast(state, self.id(), self.fits().view())).await
    }

    /// Returns up to `limit` allocations, from iteration `from` on.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn allocations(&self, from: u64, limit: u64) -> Result<Vec<AllocateResponse>, JobError> {
        let mut reading = self.store().view().await?;
        let attempts = attempts(reading.segments(self.id()).await?);
        let mut stored = Vec::new();
        for Range { start, end } in attempts.positions(from..from.saturating_add(limit)) {
            stored.extend(reading.answers(self.id(), start, end - start).await?);
        }
        drop(reading);
        let answer = |stored: &StoredAllocation| {
            let Iteration { attempt, iteration } = attempts.at(stored.iteration);
            Ok::<_, JobError>(AllocateResponse { attempt, iteration, ..stored.parse()? })
        };
        compute(true, || stored.iter().map(answer).collect())
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
        let mut reading = self.store().view().await?;
        let attempts = attempts(reading.segments(self.id()).await?);
        let (mut stored, mut reports) = (Vec::new(), Vec::new());
        for Range { start, end } in attempts.positions(from..from.saturating_add(limit)) {
            if let Some(last) = start.checked_sub(1) {
                stored.extend(reading.allocation(self.id(), last).await?.map(|(_, stored)| stored));
            }
            stored.extend(reading.answers(self.id(), start, end - start).await?);
            reports.extend(reading.reports_from(self.id(), start, end - start).await?);
        }
        drop(reading);
        compute(true, || {
            let answers: Vec<AllocateResponse> =
                stored.iter().map(StoredAllocation::parse).collect::<Result<_, _>>()?;
            Ok(view::speeds(self.id(), &attempts, worker, &answers, reports))
        })
    }

    async fn look<T>(self: &Arc<Self>, look: impl FnOnce(&JobState) -> T) -> Result<T, JobError> {
        Ok(look(self.lock().await?.state()))
    }
}

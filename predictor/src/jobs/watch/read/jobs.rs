//! Reads the summaries of all jobs.

use evenstep_protocol::{JobId, JobSummary, JobView, LiveView};
use evenstep_store::StoredSummary;

use super::super::view;
use crate::jobs::error::JobError;
use crate::jobs::registry::Jobs;

impl Jobs {
    /// Returns the summary of all jobs. Those of jobs that are not in memory are read from the store once.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn live(&self) -> Result<LiveView, JobError> {
        let registration = self.store().registration()?;
        let mut reading = self.store().view().await?;
        let owners = reading.owners().await?;
        let now = self.now();
        self.retain_stored(|job_id| owners.binary_search_by(|(known, _)| known.cmp(job_id)).is_ok());
        let line = |job_id: &JobId| {
            let known = self.known(job_id, registration);
            if let Some(job) = known.as_ref().filter(|job| job.live().is_known()) {
                return Some(view::summary(job.live(), job_id, now));
            }
            let stored = self.stored_job(job_id, registration)?;
            if let Some(reason) = known.and_then(|job| job.live().facts().unreadable) {
                stored.live().unreadable(Some(reason));
            }
            Some(view::summary(stored.live(), job_id, now))
        };
        let is_unknown = |(job_id, url): &(JobId, Option<String>)| url.is_none() && line(job_id).is_none();
        if owners.iter().any(is_unknown) {
            for stored in reading.job_summaries().await? {
                let owner = owners.binary_search_by(|(job_id, _)| job_id.cmp(&stored.job_id));
                let is_ours = owner.is_ok_and(|at| owners[at].1.is_none());
                if is_ours && line(&stored.job_id).is_none() {
                    let job = self.new_job(&stored.job_id, registration);
                    job.live().stored(&stored);
                    self.store_job(job);
                }
            }
        }
        let summary = |(job_id, url): (JobId, Option<String>)| match line(&job_id).filter(|_| url.is_none()) {
            Some(line) => line,
            None => JobSummary::named(job_id, url),
        };
        let jobs = owners.into_iter().map(summary).collect();
        Ok(LiveView { now_unix_ms: now.unix_ms, jobs, nodes: self.node_lines(now.unix_ms) })
    }

    /// Returns the summary of every job. For jobs that are not in memory, it is read from the store.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn views(&self) -> Result<Vec<JobView>, JobError> {
        let registration = self.store().registration()?;
        let mut views = Vec::new();
        let stored = self.store().view().await?.job_summaries().await?;
        for stored in stored {
            let known = self.known(&stored.job_id, registration);
            if let Some(job) = known.as_ref().filter(|job| job.is_loaded()) {
                match job.view().await {
                    Ok(view) => {
                        views.push(view);
                        continue;
                    }
                    // Deleted in the meantime.
                    Err(JobError::UnknownJob(_)) => continue,
                    Err(JobError::Unreadable { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            let unreadable = known.and_then(|job| job.live().facts().unreadable).or(stored.unreadable);
            let stored = StoredSummary { unreadable, ..stored };
            views.push(view::stored(stored, self.started_ms(), self.now()));
        }
        Ok(views)
    }
}

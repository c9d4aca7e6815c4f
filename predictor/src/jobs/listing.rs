//! Summaries of all jobs, and the leases of those that are not in memory.

use evenstep_protocol::JobView;

use super::describe;
use super::error::JobError;
use super::leases::Leases;
use super::registry::Jobs;

impl Jobs {
    /// Returns the summary of every job. For jobs that are not in memory, it is read from the store.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn views(&self) -> Result<Vec<JobView>, JobError> {
        let registration = self.store().registration()?;
        let mut views = Vec::new();
        for stored in self.store().job_summaries().await? {
            let view = match self.known(&stored.job_id, registration).filter(|job| job.is_loaded()) {
                Some(job) => job.view().await,
                None => Ok(describe::stored(stored)),
            };
            match view {
                Ok(view) => views.push(view),
                // Deleted in the meantime.
                Err(JobError::UnknownJob(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(views)
    }

    /// Starts the leases of the workers in the store, because their jobs may never be requested again. Jobs in a
    /// shared store may belong to other predictors, which check their leases.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn start_leases(&self) -> Result<(), JobError> {
        if self.store().is_shared() {
            return Ok(());
        }
        let (registration, now_unix_ms) = (self.store().registration()?, self.now_unix_ms());
        for stored in self.store().job_summaries().await?.iter().filter(|stored| stored.live_workers > 0) {
            let mut jobs = self.write();
            let job = jobs.entry(stored.job_id.clone());
            let job = job.or_insert_with(|| self.new_job(&stored.job_id, registration));
            if !job.is_loaded() {
                job.rest(Leases::full((stored.spec.lease_s * 1e3) as i64, now_unix_ms));
            }
        }
        Ok(())
    }
}

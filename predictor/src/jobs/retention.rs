//! Letting the oldest iterations of jobs go: never while one plans, and never to be planned again.

use evenstep_protocol::JobId;
use evenstep_store::RollUp;

use super::{JobError, Jobs};

impl Jobs {
    /// Lets the oldest iterations of a job go.
    ///
    /// # Errors
    /// As [`Jobs::job`], or what the store says; then nothing went.
    pub async fn roll_up(&self, job_id: &JobId, roll_up: &RollUp) -> Result<(), JobError> {
        self.job(job_id).await?.roll_up(roll_up).await
    }
}

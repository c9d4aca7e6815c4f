//! Letting the oldest iterations of jobs go: never while one plans, and never to be planned again.

use evenstep_protocol::JobId;
use evenstep_store::RollUp;

use super::{Book, BookError};

impl Book {
    /// Lets the oldest iterations of a job go.
    ///
    /// # Errors
    /// As [`Book::job`], or what the store says; then nothing went.
    pub async fn let_go(&self, job_id: &JobId, roll_up: &RollUp) -> Result<(), BookError> {
        self.job(job_id).await?.let_go(roll_up).await
    }
}

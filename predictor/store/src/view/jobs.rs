//! All jobs with their owners, the latest events of a job, and the audit log.

use evenstep_protocol::JobId;

use super::View;
use crate::database::rows;
use crate::encode::id;
use crate::error::StoreError;

impl View {
    /// Returns all jobs, sorted by id, with the URL of the owner; `None` for jobs that this predictor or no
    /// predictor owns.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn owners(&mut self) -> Result<Vec<(JobId, Option<String>)>, StoreError> {
        if !self.lease.is_shared() {
            let ids = rows!(self.connection()?, (String,), "SELECT job_id FROM job ORDER BY job_id")?;
            return Ok(ids.into_iter().filter_map(|(job_id,)| Some((id(job_id).ok()?, None))).collect());
        }
        let ours = self.lease.held(|held| held.instance.clone())?;
        let owned = rows!(
            self.connection()?,
            (String, Option<String>),
            "SELECT job_id, url FROM job LEFT JOIN predictor ON instance = owner AND instance <> $1 ORDER BY job_id",
            ours,
        )?;
        Ok(owned.into_iter().filter_map(|(job_id, url)| Some((id(job_id).ok()?, url))).collect())
    }
}

//! Reading models.

use evenstep_protocol::JobId;

use crate::database::{rows, scalar};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Returns the parts of a job's models in order; none if none are stored in this format.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn models(&self, job_id: &JobId, format: u32) -> Result<Vec<Vec<u8>>, StoreError> {
        let sql = "SELECT state FROM model_state WHERE job_id = $1 AND format = $2
                AND revision = (SELECT revision FROM model_state WHERE job_id = $1 AND part = 0)
            ORDER BY part";
        let parts = rows!(&self.readers, (Vec<u8>,), sql, job_id.as_str(), i64::from(format))?;
        Ok(parts.into_iter().map(|(state,)| state).collect())
    }

    /// Returns the models of a device type if they are stored in this format.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn device_model(&self, device: &str, format: u32) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = "SELECT state FROM device_model WHERE device = $1 AND format = $2";
        Ok(scalar!(&self.readers, Vec<u8>, sql, device, i64::from(format))?)
    }
}

//! Reading models.

use evenstep_protocol::JobId;

use crate::database::scalar;
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Returns a job's models if they are stored in this format.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn models(&self, job_id: &JobId, format: u32) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = "SELECT state FROM model_state WHERE job_id = $1 AND format = $2";
        Ok(scalar!(&self.readers, Vec<u8>, sql, job_id.as_str(), i64::from(format))?)
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

//! Models as they are stored.

use evenstep_protocol::JobId;

use crate::database::scalar;
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// What the models of a job have learned, where it was stored in this format.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn models(&self, job_id: &JobId, format: u32) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = "SELECT state FROM model_state WHERE job_id = $1 AND format = $2";
        Ok(scalar!(&self.readers, Vec<u8>, sql, job_id.as_str(), i64::from(format))?)
    }

    /// What was learned on a kind of device, where it was stored in this format.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn device_model(&self, device: &str, format: u32) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = "SELECT state FROM device_model WHERE device = $1 AND format = $2";
        Ok(scalar!(&self.readers, Vec<u8>, sql, device, i64::from(format))?)
    }
}

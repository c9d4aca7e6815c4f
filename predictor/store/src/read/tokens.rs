//! Reading tokens.

use crate::access::{StoredToken, TOKENS_MAX};
use crate::database::rows;
use crate::error::StoreError;
use crate::store::Store;

/// The oldest `$1` tokens, in the order of their creation.
pub(crate) const TOKENS: &str =
    "SELECT token_id, secret_sha256, scope, jobs, note, created_unix_ms, expires_unix_ms,
    last_used_unix_ms FROM token ORDER BY created_unix_ms, token_id LIMIT $1";

impl Store {
    /// Returns all tokens, the oldest first.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn tokens(&self) -> Result<Vec<StoredToken>, StoreError> {
        Ok(rows!(&self.readers, StoredToken, TOKENS, TOKENS_MAX as i64)?)
    }
}

//! Encoding of values for columns, and decoding.

use evenstep_protocol::InvalidId;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::StoreError;

/// Encodes a value as JSON.
pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|source| StoreError::Corrupt { what: "value", source })
}

/// Decodes stored JSON; `what` names the value in errors.
pub(crate) fn from_json<T: DeserializeOwned>(text: &str, what: &'static str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|source| StoreError::Corrupt { what, source })
}

/// Returns JSON bytes as text for a column.
pub(crate) fn as_text<'a>(json: &'a [u8], what: &'static str) -> Result<&'a str, StoreError> {
    let custom = <serde_json::Error as serde::ser::Error>::custom;
    std::str::from_utf8(json).map_err(|error| StoreError::Corrupt { what, source: custom(error) })
}

/// Decodes a stored id.
pub(crate) fn id<T: TryFrom<String, Error = InvalidId>>(text: String) -> Result<T, StoreError> {
    let custom = <serde_json::Error as serde::de::Error>::custom;
    T::try_from(text).map_err(|error| StoreError::Corrupt { what: "id", source: custom(error) })
}

/// Converts to an integer column. Integers of both databases are signed; the HTTP layer rejects values above
/// `i64::MAX`.
pub(crate) fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

//! Values on their way into columns and back.

use evenstep_protocol::InvalidId;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::StoreError;

/// A value as JSON.
pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|source| StoreError::Corrupt { what: "value", source })
}

/// Stored JSON as a value; `what` names it in the error.
pub(crate) fn from_json<T: DeserializeOwned>(text: &str, what: &'static str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|source| StoreError::Corrupt { what, source })
}

/// JSON that is stored as text.
pub(crate) fn as_text<'a>(json: &'a [u8], what: &'static str) -> Result<&'a str, StoreError> {
    let custom = <serde_json::Error as serde::ser::Error>::custom;
    std::str::from_utf8(json).map_err(|error| StoreError::Corrupt { what, source: custom(error) })
}

/// A stored id.
pub(crate) fn id<T: TryFrom<String, Error = InvalidId>>(text: String) -> Result<T, StoreError> {
    let custom = <serde_json::Error as serde::de::Error>::custom;
    T::try_from(text).map_err(|error| StoreError::Corrupt { what: "id", source: custom(error) })
}

/// An integer column's value. Integers of both databases are signed; http rejects numbers above their maximum.
pub(crate) fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

//! Encoding of values for columns, and decoding.

use std::collections::BTreeMap;
use std::fmt::Display;

use evenstep_protocol::{InvalidId, JobSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgTypeInfo, PgValueRef};
use sqlx::sqlite::{SqliteTypeInfo, SqliteValueRef};
use sqlx::{Decode, Postgres, Sqlite, Type};

use crate::error::StoreError;
use crate::lenient;

/// Encodes a value as JSON.
pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|source| StoreError::Corrupt { what: "value", source })
}

/// JSON of a row, which damage may have left without valid UTF-8.
#[derive(Debug)]
pub(crate) struct Json(pub Vec<u8>);

impl Type<Sqlite> for Json {
    fn type_info() -> SqliteTypeInfo {
        <String as Type<Sqlite>>::type_info()
    }
}

impl<'r> Decode<'r, Sqlite> for Json {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        <Vec<u8> as Decode<Sqlite>>::decode(value).map(Self)
    }
}

impl Type<Postgres> for Json {
    fn type_info() -> PgTypeInfo {
        <String as Type<Postgres>>::type_info()
    }

    fn compatible(found: &PgTypeInfo) -> bool {
        <String as Type<Postgres>>::compatible(found)
    }
}

impl<'r> Decode<'r, Postgres> for Json {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        <String as Decode<Postgres>>::decode(value).map(|text| Self(text.into_bytes()))
    }
}

impl Json {
    /// Decodes the value, without fields of a newer version; `what` names it in errors.
    pub fn read<T: DeserializeOwned>(&self, what: &'static str) -> Result<T, StoreError> {
        self.read_with_ignored(what).map(|(value, _)| value)
    }

    /// Decodes the value. Also returns the names of the fields that were ignored.
    pub fn read_with_ignored<T: DeserializeOwned>(
        &self,
        what: &'static str,
    ) -> Result<(T, Vec<String>), StoreError> {
        lenient::from_slice(&self.0).map_err(|source| StoreError::Corrupt { what, source })
    }

    /// Returns the text, with replacement characters that no reader of it accepts.
    pub fn into_text(self) -> String {
        String::from_utf8(self.0)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// Decodes the readable entries of an object.
    pub fn read_entries<T: DeserializeOwned>(&self) -> BTreeMap<String, T> {
        // A second look only if an entry cannot be read.
        if let Ok(entries) = serde_json::from_slice(&self.0) {
            return entries;
        }
        let entries: BTreeMap<String, Value> = serde_json::from_slice(&self.0).unwrap_or_default();
        let entry = |(name, value)| Some((name, T::deserialize(value).ok()?));
        entries.into_iter().filter_map(entry).collect()
    }
}

/// The options of a job, and the names of those that this version does not know.
///
/// # Errors
/// [`StoreError::Corrupt`], also if an option has a value that no version allows and that planning cannot bear.
pub(crate) fn job_spec(json: &Json) -> Result<(JobSpec, Vec<String>), StoreError> {
    let (spec, unknown): (JobSpec, _) = json.read_with_ignored("job")?;
    let numbers = [
        ("global_batch", Some(spec.global_batch)),
        ("quantum", Some(spec.quantum)),
        ("per_worker_batch", spec.per_worker_batch),
        ("min_chunk", spec.min_chunk),
        ("distinct_sizes", spec.distinct_sizes),
    ];
    let zero = numbers.iter().find(|(_, value)| *value == Some(0)).map(|(name, _)| (*name, 0.0));
    let lease = Some(("lease_s", spec.lease_s)).filter(|(_, lease_s)| *lease_s <= 0.0);
    if let Some((name, value)) = zero.or(lease) {
        return Err(corrupt("job", format_args!("{name} {value} must be greater than 0")));
    }
    Ok((spec, unknown))
}

/// Decodes a count; `what` names it in errors.
pub(crate) fn count(value: i64, what: &'static str) -> Result<u64, StoreError> {
    u64::try_from(value).map_err(|_| corrupt(what, format_args!("{value} must be at least 0")))
}

fn corrupt(what: &'static str, message: impl Display) -> StoreError {
    StoreError::Corrupt { what, source: <serde_json::Error as serde::de::Error>::custom(message) }
}

/// Returns JSON bytes as text for a column.
pub(crate) fn as_text<'a>(json: &'a [u8], what: &'static str) -> Result<&'a str, StoreError> {
    let custom = <serde_json::Error as serde::ser::Error>::custom;
    std::str::from_utf8(json).map_err(|error| StoreError::Corrupt { what, source: custom(error) })
}

/// Decodes a stored id.
pub(crate) fn id<T: TryFrom<String, Error = InvalidId>>(text: String) -> Result<T, StoreError> {
    T::try_from(text).map_err(|error| corrupt("id", error))
}

/// Converts to an integer column. Integers of both databases are signed; the HTTP layer rejects values above
/// `i64::MAX`.
pub(crate) fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

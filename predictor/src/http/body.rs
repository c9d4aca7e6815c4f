//! Extraction and checks of request data: JSON bodies, path and query parameters. Errors name the field, the
//! value and the rule.

use axum::body::Bytes;
use std::fmt::Display;

use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use evenstep_protocol::Readings;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::problem::ErrorResponse;
use super::strict::{self, Strict};
use crate::long::compute;

/// Largest integer in a request. Every JSON reader represents it exactly, and so does the store.
pub const INTEGER_MAX: u64 = 1 << 53;
/// Limit of readings in one map.
pub const READINGS_MAX: usize = 64;
/// Length limit of a reading's name, in bytes.
pub const READING_NAME_MAX: usize = 64;
/// Size of a body that is parsed and checked within a millisecond, in bytes.
pub const SHORT_BYTES: usize = 128 << 10;

/// A JSON body. `access` has checked the content type.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = ErrorResponse;

    async fn from_request(request: Request, state: &S) -> Result<Self, ErrorResponse> {
        let bytes = Bytes::from_request(request, state).await.map_err(unreadable)?;
        // Tracking the path takes as long as parsing, so it is only done after an error.
        compute(bytes.len() > SHORT_BYTES, || {
            strict::from_slice(&bytes).map(Self).map_err(|error| locate::<T>(&bytes, &error))
        })
    }
}

/// A body as text, for handlers that keep the original text.
#[derive(Debug)]
pub struct Text(pub String);

impl<S: Send + Sync> FromRequest<S> for Text {
    type Rejection = ErrorResponse;

    async fn from_request(request: Request, state: &S) -> Result<Self, ErrorResponse> {
        let bytes = Bytes::from_request(request, state).await.map_err(unreadable)?;
        String::from_utf8(bytes.into()).map(Self).map_err(|error| {
            let detail = format!("the body: {}", error.utf8_error());
            ErrorResponse::new(StatusCode::BAD_REQUEST, "malformed", "Not UTF-8", detail)
        })
    }
}

/// Maps a JSON error to a response with the path at which it occurred: 400 if the text is incomplete or not
/// JSON, 422 if its shape is wrong.
pub fn locate<T: DeserializeOwned>(bytes: &[u8], error: &serde_json::Error) -> ErrorResponse {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let located = serde_path_to_error::deserialize::<_, T>(Strict(&mut reader)).err();
    let path = located.map_or_else(|| "the end".to_owned(), |located| located.path().to_string());
    let detail = format!("{path}: {error}");
    // serde_json counts a key that is no number as an error of syntax.
    if error.is_data() || serde_json::from_slice::<IgnoredAny>(bytes).is_ok() {
        return ErrorResponse::invalid(detail);
    }
    ErrorResponse::new(StatusCode::BAD_REQUEST, "malformed", "Not JSON", detail)
}

/// The response to a body that failed after it was admitted. Admission has read it, so this does not happen.
#[expect(clippy::needless_pass_by_value, reason = "the signature that `map_err` requires")]
fn unreadable(rejection: BytesRejection) -> ErrorResponse {
    ErrorResponse::new(StatusCode::BAD_REQUEST, "malformed", "Unreadable body", rejection.body_text())
}

/// Parameters in the path.
#[derive(Debug)]
pub struct InPath<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InPath<T> {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ErrorResponse> {
        let refused = |rejection: PathRejection| {
            ErrorResponse::invalid(format!("in the path: {}", rejection.body_text()))
        };
        Path::from_request_parts(parts, state).await.map(|Path(value)| Self(value)).map_err(refused)
    }
}

/// Parameters in the query.
#[derive(Debug)]
pub struct InQuery<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for InQuery<T> {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ErrorResponse> {
        let refused = |rejection: QueryRejection| {
            ErrorResponse::invalid(format!("in the query: {}", rejection.body_text()))
        };
        Query::from_request_parts(parts, state).await.map(|Query(value)| Self(value)).map_err(refused)
    }
}

/// Checks that an integer is within a range. The error includes `name` and the value; `name` is only
/// formatted for an error.
pub fn within(
    name: impl Display,
    value: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Result<(), ErrorResponse> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(ErrorResponse::invalid(format!("{name}: {value} must be {} to {}", range.start(), range.end())))
}

/// Checks that a time in seconds is finite and not negative.
pub fn seconds(name: impl Display, value: f64) -> Result<(), ErrorResponse> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(ErrorResponse::invalid(format!("{name}: {value} must be a finite number of seconds, 0 or more")))
}

/// Checks the names, values and number of readings.
pub fn readings(name: impl Display, readings: &Readings) -> Result<(), ErrorResponse> {
    if readings.len() > READINGS_MAX {
        return Err(ErrorResponse::invalid(format!(
            "{name}: {} readings exceed the limit of {READINGS_MAX}",
            readings.len()
        )));
    }
    for (key, value) in readings {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if key.is_empty() || key.len() > READING_NAME_MAX || !key.chars().all(plain) {
            return Err(ErrorResponse::invalid(format!(
                "{name}: name {key:?} must be 1 to {READING_NAME_MAX} characters of a-z 0-9 _"
            )));
        }
        if !value.is_finite() {
            return Err(ErrorResponse::invalid(format!("{name}.{key}: {value} must be finite")));
        }
    }
    Ok(())
}

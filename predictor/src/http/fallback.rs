//! Responses to unknown paths and methods.

use axum::body::Body;
use axum::http::{Method, StatusCode, Uri};

use super::admission::discard;
use super::problem::ErrorResponse;

/// The response to an unknown path: 404.
pub async fn unknown_path(uri: Uri, body: Body) -> ErrorResponse {
    discard(body).await;
    let detail = format!("path {} does not exist; /docs lists all paths", uri.path());
    ErrorResponse::new(StatusCode::NOT_FOUND, "unknown-path", "Unknown path", detail)
}

/// The response to a method that the endpoint does not support: 405.
pub async fn wrong_method(method: Method, uri: Uri, body: Body) -> ErrorResponse {
    discard(body).await;
    let detail =
        format!("path {} does not support {method}; /docs lists the methods it supports", uri.path());
    ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, "wrong-method", "Wrong method", detail)
}

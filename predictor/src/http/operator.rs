//! Authorization of overrides: a client must send the operator token if the service has one.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use evenstep_protocol::OperatorView;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::problem::ErrorResponse;

/// The operator token. Never printed.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// The token with this text.
    pub fn new(token: &str) -> Self {
        Self(token.into())
    }

    /// Whether a request carries the token. Compares in constant time.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let carried = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(carried) = carried.and_then(|value| value.strip_prefix("Bearer ")) else { return false };
        let (ours, theirs) = (self.0.as_bytes(), carried.trim().as_bytes());
        let differences = ours.iter().zip(theirs).fold(0, |all, (a, b)| all | (a ^ b));
        ours.len() == theirs.len() && differences == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get))
}

/// Check whether the client may override workers.
#[utoipa::path(
    get, path = "/v1/operator", tag = "workers", security(("operator" = []), ()),
    responses((status = 200, description = "Whether a token is required, and whether the one sent is valid", body = OperatorView))
)]
async fn get(State(api): State<Api>, headers: HeaderMap) -> axum::Json<OperatorView> {
    let allowed = api.operator.as_ref().is_none_or(|token| token.is_in(&headers));
    axum::Json(OperatorView { token_set: api.operator.is_some(), allowed })
}

/// Proof that a request may override workers.
#[derive(Debug)]
pub struct Operator;

impl FromRequestParts<Api> for Operator {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ErrorResponse> {
        let token = State::<Api>::from_request_parts(parts, api).await;
        let State(Api { operator, .. }) = token.unwrap_or_else(|never: Infallible| match never {});
        if operator.is_none_or(|token| token.is_in(&parts.headers)) {
            return Ok(Self);
        }
        let detail =
            "this request requires the operator token of the service; send Authorization: Bearer TOKEN";
        Err(ErrorResponse::new(StatusCode::UNAUTHORIZED, "not-operator", "Not an operator", detail))
    }
}

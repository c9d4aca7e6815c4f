//! `/openapi.json`. The page at `/docs/` displays it.
//!
//! Each endpoint describes its own part. `complete` adds what all operations of a kind share, `limits` the limits of
//! values in requests.

mod complete;
mod limits;

use std::sync::Arc;

use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use evenstep_protocol::{JobId, LogEntry, NodeId, Problem, WorkerId};
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;

use super::Api;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "evenstep predictor",
        description = "Receives telemetry, serves forecasts and batch allocations. Errors are problem+json with a stable `type`."
    ),
    tags(
        (name = "allocate", description = "Allocations, requested by the training loop before each iteration"),
        (name = "jobs", description = "Job options, forecasts, allocations and history"),
        (name = "workers", description = "Members of a job, and overrides"),
        (name = "plan", description = "Burst-parallel plans; nothing is stored"),
        (name = "telemetry", description = "Samples of nodes, sent by agents"),
        (name = "access", description = "The page's session"),
        (name = "store", description = "Contents and retention of the store"),
        (name = "health", description = "For load balancers, service managers and Prometheus"),
    ),
    components(schemas(LogEntry, Problem, JobId, NodeId, WorkerId)),
    modifiers(&OperatorToken)
)]
struct Description;

/// The security scheme of `serve --operator-token`.
struct OperatorToken;

impl Modify for OperatorToken {
    fn modify(&self, document: &mut Document) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme("operator", scheme);
    }
}

/// The OpenAPI document, to which every endpoint adds its description.
pub fn document() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(Description::openapi())
}

/// Serves the complete document.
pub fn router(document: Document) -> Router<Api> {
    // A document of strings, numbers and lists always has a JSON value.
    let document = serde_json::to_value(document).map(complete::complete).unwrap_or_default();
    let document = Arc::new(document);
    let answer = move || {
        let document = document.clone();
        async move { Json(&*document).into_response() }
    };
    Router::new().route("/openapi.json", get(answer))
}

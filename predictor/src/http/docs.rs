//! `/openapi.json`. The page at `/docs/` shows it to people.

use std::sync::Arc;

use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use evenstep_protocol::LogEntry;
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;

use super::Api;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "evenstep predictor",
        description = "Telemetry in, forecasts and batch allocations out. Errors are problem+json with a stable `type`."
    ),
    tags(
        (name = "allocate", description = "What a training loop asks before each iteration"),
        (name = "jobs", description = "What is asked for, and what came of it"),
        (name = "workers", description = "Who takes part"),
        (name = "plan", description = "What would be best for a model; nothing is kept"),
        (name = "telemetry", description = "What agents measure"),
        (name = "store", description = "What is kept, and for how long"),
        (name = "health", description = "For load balancers, service managers and Prometheus"),
    ),
    components(schemas(LogEntry)),
    modifiers(&OperatorToken)
)]
struct Description;

/// The token of `serve --operator-token`.
struct OperatorToken;

impl Modify for OperatorToken {
    fn modify(&self, document: &mut Document) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme("operator", scheme);
    }
}

/// The document that every endpoint adds itself to.
pub fn document() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(Description::openapi())
}

/// The finished document.
pub fn router(document: Document) -> Router<Api> {
    let document = Arc::new(document);
    let answer = move || {
        let document = document.clone();
        async move { Json(&*document).into_response() }
    };
    Router::new().route("/openapi.json", get(answer))
}

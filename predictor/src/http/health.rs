//! `/healthz`: the process is running. `/readyz`: the service can respond.

use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::problem::ErrorResponse;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz))
}

/// Check that the process is running.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, description = "Alive", body = String)))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// Check that the store accepts writes and the service is not shutting down.
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    responses((status = 200, description = "Ready", body = String), (status = 503, description = "Not ready"))
)]
async fn readyz(State(api): State<Api>) -> Result<&'static str, ErrorResponse> {
    if *api.draining.borrow() {
        let detail = "the service is shutting down: it only finishes requests in flight";
        return Err(ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, "draining", "Shutting down", detail));
    }
    api.jobs.check().await?;
    Ok("ready\n")
}

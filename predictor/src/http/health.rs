//! `/healthz`: the process lives. `/readyz`: it can answer.

use axum::extract::State;
use axum::http::StatusCode;
use evenstep_protocol::Problem;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::problem::Refusal;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz))
}

/// The process lives.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, description = "Alive", body = String)))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// The store takes writes, and the service is not going down.
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    responses((status = 200, description = "Ready", body = String), (status = 503, description = "Not ready", body = Problem))
)]
async fn readyz(State(api): State<Api>) -> Result<&'static str, Refusal> {
    if *api.draining.borrow() {
        let detail = "the service is going down: it finishes what it has begun";
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "draining", "Going down", detail));
    }
    api.jobs.check().await?;
    Ok("ready\n")
}

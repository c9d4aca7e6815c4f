//! `GET /metrics`, for Prometheus.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use evenstep_observability::metrics::{CONTENT_TYPE, text};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::problem::ErrorResponse;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// Get all metrics in the text format of Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses((status = 200, description = "All metric families", content_type = "text/plain", body = String))
)]
async fn metrics(State(api): State<Api>) -> Result<impl IntoResponse, ErrorResponse> {
    let _alone = api.scraping.lock().await;
    let gather = api.gather.clone();
    let written = tokio::task::spawn_blocking(move || text(&gather()).map_err(|error| error.to_string()));
    let written = written.await.map_err(|error| error.to_string()).and_then(|text| text);
    let text = written.map_err(|detail| {
        ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal error", detail)
    })?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text))
}

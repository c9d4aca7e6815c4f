//! `GET /metrics`, for Prometheus.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use evenstep_observability::metrics::prometheus::proto::MetricFamily;
use evenstep_observability::metrics::{CONTENT_TYPE, text};
use evenstep_protocol::JobId;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::problem::ErrorResponse;
use crate::access::Caller;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// Get all metrics in the text format of Prometheus.
///
/// A client whose token is for some jobs gets the series of these jobs.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses((status = 200, description = "All metric families", content_type = "text/plain", body = String))
)]
async fn metrics(State(api): State<Api>, caller: Caller) -> Result<impl IntoResponse, ErrorResponse> {
    let _alone = api.pools.scrapes.take(&caller).await?;
    let gather = api.gather.clone();
    let written = tokio::task::spawn_blocking(move || {
        text(&visible(gather(), &caller)).map_err(|error| error.to_string())
    });
    let written = written.await.map_err(|error| error.to_string()).and_then(|text| text);
    let text = written.map_err(|detail| {
        ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal error", detail)
    })?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text))
}

/// The series that the client may see.
fn visible(mut families: Vec<MetricFamily>, caller: &Caller) -> Vec<MetricFamily> {
    if caller.jobs().is_all() {
        return families;
    }
    for family in &mut families {
        family.mut_metric().retain(|series| {
            let job = series.get_label().iter().find(|label| label.name() == "job_id");
            job.and_then(|label| JobId::new(label.value()).ok()).is_some_and(|job_id| caller.may_use(&job_id))
        });
    }
    families.retain(|family| !family.get_metric().is_empty());
    families
}

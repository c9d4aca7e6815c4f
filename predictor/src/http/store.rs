//! The store at a glance.

use axum::extract::State;
use evenstep_protocol::{Problem, StoreView};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::problem::Refusal;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get))
}

/// What the store holds, how much room it takes, and what retention did. Rows are counted: not meant for every second.
#[utoipa::path(
    get, path = "/v1/store", tag = "store",
    responses((status = 200, description = "The store", body = StoreView), (status = 503, description = "The store failed", body = Problem))
)]
async fn get(State(api): State<Api>) -> Result<axum::Json<StoreView>, Refusal> {
    Ok(axum::Json(api.retention.store_view(&api.jobs).await?))
}

//! The summary of the store.

use axum::extract::State;
use evenstep_protocol::StoreView;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::problem::ErrorResponse;
use crate::access::Caller;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get))
}

/// Get the contents and size of the store, and the statistics of retention.
///
/// Counts rows: too expensive for a request every second.
#[utoipa::path(
    get, path = "/v1/store", tag = "store",
    responses((status = 200, description = "The store", body = StoreView))
)]
async fn get(State(api): State<Api>, caller: Caller) -> Result<axum::Json<StoreView>, ErrorResponse> {
    let _view = api.pools.views.take(&caller).await?;
    Ok(axum::Json(api.retention.store_view(&api.jobs).await?))
}

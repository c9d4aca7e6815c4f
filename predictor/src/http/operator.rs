//! `GET /v1/operator`: whether the client may override workers.

use axum::extract::State;
use evenstep_protocol::OperatorView;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use crate::access::{Auth, Caller, Scope};

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get))
}

/// Check whether the client may override workers.
#[utoipa::path(
    get, path = "/v1/operator", tag = "workers", security(("operator" = []), ()),
    responses((status = 200, description = "Whether a token is required, and whether the one sent is valid", body = OperatorView))
)]
async fn get(State(api): State<Api>, caller: Caller) -> axum::Json<OperatorView> {
    let token_set = api.access.has_operator_token() || api.access.auth() == Auth::Required;
    axum::Json(OperatorView { token_set, allowed: caller.has(&[Scope::Operator]) })
}

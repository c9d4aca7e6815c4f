//! Nodes and their telemetry.

use axum::extract::State;
use evenstep_protocol::{NodeId, NodesView, SamplesView};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::{InPath, InQuery, within};
use super::problem::ErrorResponse;

/// Limit of samples in one response.
const LIMIT_MAX: u64 = 10_000;
/// Samples in one response if the request sets no limit.
const LIMIT_DEFAULT: u64 = 100;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(samples))
}

/// List all nodes that ever sent telemetry, with their latest samples.
#[utoipa::path(get, path = "/v1/nodes", tag = "telemetry", responses((status = 200, description = "The nodes", body = NodesView)))]
async fn list(State(api): State<Api>) -> Result<axum::Json<NodesView>, ErrorResponse> {
    Ok(axum::Json(NodesView { nodes: api.jobs.nodes().await? }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LimitQuery {
    /// Limit of samples, 1 to 10,000; default 100.
    #[param(minimum = 1, maximum = 10_000)]
    limit: Option<u64>,
}

/// Get the latest samples of a node, oldest first.
#[utoipa::path(
    get, path = "/v1/nodes/{node}/samples", tag = "telemetry",
    params(LimitQuery),
    responses((status = 200, description = "The samples; empty for an unknown node", body = SamplesView))
)]
async fn samples(
    State(api): State<Api>,
    InPath(node): InPath<NodeId>,
    InQuery(latest): InQuery<LimitQuery>,
) -> Result<axum::Json<SamplesView>, ErrorResponse> {
    let limit = latest.limit.unwrap_or(LIMIT_DEFAULT);
    within("limit", limit, 1..=LIMIT_MAX)?;
    let samples = api.jobs.node_samples(&node, limit).await?;
    Ok(axum::Json(SamplesView { node, samples }))
}

//! Nodes and their telemetry.

use std::collections::BTreeSet;

use axum::extract::State;
use evenstep_protocol::{NodeId, NodeSample, NodesView, SamplesView, WorkerId};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::{InPath, InQuery, within};
use super::problem::ErrorResponse;
use crate::access::Caller;
use crate::jobs::Jobs;

/// Limit of samples in one response.
const LIMIT_MAX: u64 = 10_000;
/// Samples in one response if the request sets no limit.
const LIMIT_DEFAULT: u64 = 100;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(samples))
}

/// The nodes that a client may see: all, or those on which workers of its jobs run.
#[derive(Debug)]
pub struct Nodes(Option<BTreeSet<String>>);

impl Nodes {
    /// The nodes of a client.
    pub fn of(jobs: &Jobs, caller: &Caller) -> Self {
        if caller.jobs().is_all() {
            return Self(None);
        }
        let workers = jobs.live_workers(|job_id| caller.may_use(job_id));
        let node = |worker: &WorkerId| worker.as_str().split('/').next().unwrap_or_default().to_owned();
        Self(Some(workers.iter().map(node).collect()))
    }

    /// Whether the client may see a node.
    pub fn include(&self, node: &NodeId) -> bool {
        self.0.as_ref().is_none_or(|nodes| nodes.contains(node.as_str()))
    }

    /// Removes what is about the processes of others.
    fn hide_processes(&self, sample: &mut NodeSample) {
        if self.0.is_some() {
            sample.processes.clear();
            sample.gpus.iter_mut().for_each(|gpu| gpu.processes.clear());
        }
    }
}

/// List all nodes that ever sent telemetry, with their latest samples.
///
/// A client whose token is for some jobs gets the nodes on which workers of these jobs run, without processes.
#[utoipa::path(get, path = "/v1/nodes", tag = "telemetry", responses((status = 200, description = "The nodes", body = NodesView)))]
async fn list(State(api): State<Api>, caller: Caller) -> Result<axum::Json<NodesView>, ErrorResponse> {
    let visible = Nodes::of(&api.jobs, &caller);
    let mut nodes = api.jobs.nodes().await?;
    nodes.retain(|node| visible.include(&node.node));
    nodes.iter_mut().for_each(|node| visible.hide_processes(&mut node.latest));
    Ok(axum::Json(NodesView { nodes }))
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
    caller: Caller,
    InPath(node): InPath<NodeId>,
    InQuery(latest): InQuery<LimitQuery>,
) -> Result<axum::Json<SamplesView>, ErrorResponse> {
    let limit = latest.limit.unwrap_or(LIMIT_DEFAULT);
    within("limit", limit, 1..=LIMIT_MAX)?;
    let visible = Nodes::of(&api.jobs, &caller);
    if !visible.include(&node) {
        // As for an unknown node.
        return Ok(axum::Json(SamplesView { node, samples: Vec::new() }));
    }
    let mut samples = api.jobs.node_samples(&node, limit).await?;
    samples.iter_mut().for_each(|sample| visible.hide_processes(sample));
    Ok(axum::Json(SamplesView { node, samples }))
}

//! Nodes and their telemetry.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use evenstep_protocol::{NodeHealthView, NodeId, NodeSample, NodeWorker, NodesView, SamplesView};
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
/// Seconds for which a worker must be a straggler before its node is unhealthy, if the request sets none.
const AFTER_S_DEFAULT: u64 = 300;
/// Limit of these seconds: one day.
const AFTER_S_MAX: u64 = 86_400;
/// Samples in one response if the request sets no limit.
const LIMIT_DEFAULT: u64 = 100;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(samples)).routes(routes!(health))
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
        Self(Some(workers.iter().map(|one| one.worker.node().to_owned()).collect()))
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
    let _view = api.pools.views.take(&caller).await?;
    let visible = Nodes::of(&api.jobs, &caller);
    let mut nodes = api.jobs.nodes().await?;
    nodes.retain(|node| visible.include(&node.node));
    nodes.iter_mut().for_each(|node| visible.hide_processes(&mut node.latest));
    let mut workers = BTreeMap::<String, Vec<NodeWorker>>::new();
    for worker in api.jobs.live_workers(|job_id| caller.may_use(job_id)) {
        workers.entry(worker.worker.node().to_owned()).or_default().push(worker);
    }
    nodes.iter_mut().for_each(|node| node.workers = workers.remove(node.node.as_str()).unwrap_or_default());
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
    let _view = api.pools.views.take(&caller).await?;
    let mut samples = api.jobs.node_samples(&node, limit).await?;
    samples.iter_mut().for_each(|sample| visible.hide_processes(sample));
    Ok(axum::Json(SamplesView { node, samples }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AfterQuery {
    /// Seconds for which a worker must be a straggler, 0 to 86,400; default 300.
    #[param(minimum = 0, maximum = 86_400)]
    after_s: Option<u64>,
}

/// Get whether a node is healthy: no worker on it is a straggler for long.
///
/// A worker that left as a straggler counts for 10 more minutes, unless it joins again and is not slow. Only jobs that this
/// predictor owns count, and only those that the client may read.
#[utoipa::path(
    get, path = "/v1/nodes/{node}/health", tag = "telemetry",
    params(AfterQuery),
    responses((status = 200, description = "The health; an unknown node is healthy", body = NodeHealthView))
)]
async fn health(
    State(api): State<Api>,
    caller: Caller,
    InPath(node): InPath<NodeId>,
    InQuery(query): InQuery<AfterQuery>,
) -> Result<axum::Json<NodeHealthView>, ErrorResponse> {
    let after_s = query.after_s.unwrap_or(AFTER_S_DEFAULT);
    within("after_s", after_s, 0..=AFTER_S_MAX)?;
    Ok(axum::Json(api.jobs.node_health(&node, after_s, |job_id| caller.may_use(job_id))))
}

//! Views of a job: its forecast, its allocations, predicted against actual speed.

use axum::extract::State;
use evenstep_protocol::{AllocateAnswer, ForecastView, JobId, Problem, SpeedsView, WorkerId};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::{INTEGER_MAX, InPath, InQuery, within};
use super::problem::Refusal;

/// Iterations in one answer.
const LIMIT_MAX: u64 = 10_000;
/// Iterations in one answer where nobody says how many.
const LIMIT_DEFAULT: u64 = 100;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(forecast)).routes(routes!(allocations)).routes(routes!(speeds))
}

/// What each live worker is expected to do in the coming iteration, and which models say so.
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}/forecast", tag = "jobs", params(("job_id" = String, Path, description = "The job")),
    responses((status = 200, description = "The forecast", body = ForecastView), (status = 404, description = "Unknown job", body = Problem))
)]
async fn forecast(
    State(api): State<Api>,
    InPath(job_id): InPath<JobId>,
) -> Result<axum::Json<ForecastView>, Refusal> {
    Ok(axum::Json(api.jobs.job(&job_id).await?.forecast().await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Span {
    /// The first iteration; by default such that the latest are shown.
    from: Option<u64>,
    /// At most so many iterations, 1 to 10,000; default 100.
    limit: Option<u64>,
    /// Only this worker (speeds).
    #[param(value_type = Option<String>)]
    worker: Option<WorkerId>,
}

impl Span {
    /// The first iteration and how many, checked.
    fn bounds(&self, next_iteration: u64) -> Result<(u64, u64), Refusal> {
        let limit = self.limit.unwrap_or(LIMIT_DEFAULT);
        within("limit", limit, 1..=LIMIT_MAX)?;
        let from = self.from.unwrap_or(next_iteration.saturating_sub(limit));
        within("from", from, 0..=INTEGER_MAX)?;
        Ok((from, limit))
    }
}

/// The answers of iterations, with their decisions.
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}/allocations", tag = "jobs",
    params(("job_id" = String, Path, description = "The job"), Span),
    responses((status = 200, description = "By iteration", body = Vec<AllocateAnswer>), (status = 404, description = "Unknown job", body = Problem))
)]
async fn allocations(
    State(api): State<Api>,
    InPath(job_id): InPath<JobId>,
    InQuery(span): InQuery<Span>,
) -> Result<axum::Json<Vec<AllocateAnswer>>, Refusal> {
    let job = api.jobs.job(&job_id).await?;
    let (from, limit) = span.bounds(job.view().await?.next_iteration)?;
    Ok(axum::Json(job.allocations(from, limit).await?))
}

/// Predicted against actual speed, by iteration and worker.
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}/speeds", tag = "jobs",
    params(("job_id" = String, Path, description = "The job"), Span),
    responses((status = 200, description = "The speeds", body = SpeedsView), (status = 404, description = "Unknown job", body = Problem))
)]
async fn speeds(
    State(api): State<Api>,
    InPath(job_id): InPath<JobId>,
    InQuery(span): InQuery<Span>,
) -> Result<axum::Json<SpeedsView>, Refusal> {
    let job = api.jobs.job(&job_id).await?;
    let (from, limit) = span.bounds(job.view().await?.next_iteration)?;
    Ok(axum::Json(job.speeds(span.worker.as_ref(), from, limit).await?))
}

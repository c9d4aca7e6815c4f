//! Views of a job: its forecast, its allocations, predicted against actual speed.

use axum::extract::State;
use evenstep_protocol::{AllocateResponse, ForecastView, JobId, SpeedsView, WorkerId};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::{INTEGER_MAX, InPath, InQuery, within};
use super::problem::ErrorResponse;
use crate::access::Caller;

/// Limit of iterations in one response.
const LIMIT_MAX: u64 = 10_000;
/// Iterations in one response if the request sets no limit. Fewer if the job has many workers.
const LIMIT_DEFAULT: u64 = 100;
/// Limit of iterations times workers in one response. Each is about 400 bytes.
const SHARES_MAX: u64 = 1 << 18;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(forecast)).routes(routes!(allocations)).routes(routes!(speeds))
}

/// Get the forecast of each live worker for the next iteration, and the models behind it.
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}/forecast", tag = "jobs",
    responses((status = 200, description = "The forecast", body = ForecastView))
)]
async fn forecast(
    State(api): State<Api>,
    InPath(job_id): InPath<JobId>,
) -> Result<axum::Json<ForecastView>, ErrorResponse> {
    Ok(axum::Json(api.jobs.job(&job_id).await?.forecast().await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Span {
    /// First iteration; the default shows the latest ones.
    from: Option<u64>,
    /// Limit of iterations, 1 to 10,000; default 100. At most 262,144 divided by the number of workers.
    #[param(minimum = 1, maximum = 10_000)]
    limit: Option<u64>,
    /// Return only this worker (speeds).
    worker: Option<WorkerId>,
}

impl Span {
    /// The first iteration and the number of iterations, checked, for responses with `workers` workers.
    fn bounds(&self, next_iteration: u64, workers: u64) -> Result<(u64, u64), ErrorResponse> {
        let most = (SHARES_MAX / workers.max(1)).max(1);
        let limit = self.limit.unwrap_or(LIMIT_DEFAULT.min(most));
        within("limit", limit, 1..=LIMIT_MAX)?;
        if limit > most {
            return Err(ErrorResponse::invalid(format!(
                "limit: {limit} must be at most {most} for {workers} workers; request fewer iterations at once"
            )));
        }
        let from = self.from.unwrap_or(next_iteration.saturating_sub(limit));
        within("from", from, 0..=INTEGER_MAX)?;
        Ok((from, limit))
    }
}

/// Get the allocations of iterations, with their decisions.
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}/allocations", tag = "jobs",
    params(Span),
    responses((status = 200, description = "The allocations, by iteration", body = Vec<AllocateResponse>))
)]
async fn allocations(
    State(api): State<Api>,
    caller: Caller,
    InPath(job_id): InPath<JobId>,
    InQuery(span): InQuery<Span>,
) -> Result<axum::Json<Vec<AllocateResponse>>, ErrorResponse> {
    let _view = api.pools.views.take(&caller).await?;
    let job = api.jobs.job(&job_id).await?;
    let view = job.view().await?;
    let (from, limit) = span.bounds(view.next_iteration, view.live_workers)?;
    Ok(axum::Json(job.allocations(from, limit).await?))
}

/// Get predicted and actual speeds, by iteration and worker.
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}/speeds", tag = "jobs",
    params(Span),
    responses((status = 200, description = "The speeds", body = SpeedsView))
)]
async fn speeds(
    State(api): State<Api>,
    caller: Caller,
    InPath(job_id): InPath<JobId>,
    InQuery(span): InQuery<Span>,
) -> Result<axum::Json<SpeedsView>, ErrorResponse> {
    let _view = api.pools.views.take(&caller).await?;
    let job = api.jobs.job(&job_id).await?;
    let view = job.view().await?;
    let (from, limit) = span.bounds(view.next_iteration, view.live_workers)?;
    Ok(axum::Json(job.speeds(span.worker.as_ref(), from, limit).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_jobs_have_fewer_iterations_in_a_response() {
        let limit = |limit, workers| {
            let span = Span { from: None, limit, worker: None };
            span.bounds(1_000_000, workers).ok()
        };
        assert_eq!(limit(None, 0), Some((999_900, 100)));
        assert_eq!(limit(Some(10_000), 26), Some((990_000, 10_000)));
        assert_eq!(limit(Some(10_000), 27), None);
        assert_eq!(limit(None, 65_536), Some((999_996, 4)));
        assert_eq!(limit(Some(1), u64::MAX), Some((999_999, 1)));
    }
}

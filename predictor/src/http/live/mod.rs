//! Server-sent events for pages and terminals while jobs run, and the history of a job in columns.

mod all;
mod feed;
mod job;
mod streams;

use axum::extract::State;
use evenstep_protocol::{HistoryView, JobId, LogView, SummaryView};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::{INTEGER_MAX, InPath, InQuery, within};
use super::problem::ErrorResponse;
use crate::access::Caller;
use crate::jobs::Period;
pub use streams::Streams;

/// Longest period of history: one year.
const SINCE_S_MAX: u64 = 366 * 86_400;
/// Limit of iterations in one history.
const POINTS_MAX: u64 = 2_000;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(all::follow))
        .routes(routes!(job::follow))
        .routes(routes!(history))
        .routes(routes!(summary))
        .routes(routes!(log))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryQuery {
    /// Period in seconds before now, 1 to a year; default 3600.
    #[param(minimum = 1, maximum = 31_622_400)]
    since_s: Option<u64>,
    /// Beginning of the period, in milliseconds since 1970, instead of `since_s`.
    #[param(minimum = 0, maximum = 9_007_199_254_740_992_u64)]
    from_unix_ms: Option<u64>,
    /// End of the period, in milliseconds since 1970; default: now.
    #[param(minimum = 0, maximum = 9_007_199_254_740_992_u64)]
    until_unix_ms: Option<u64>,
    /// Limit of iterations, 1 to 2,000; default 600. Jobs with many workers get fewer.
    #[param(minimum = 1, maximum = 2_000)]
    points: Option<u64>,
}

fn within_time(name: &str, unix_ms: u64) -> Result<i64, ErrorResponse> {
    within(name, unix_ms, 0..=INTEGER_MAX)?;
    Ok(unix_ms.cast_signed())
}

/// Get a period of a job's history for a chart: evenly sampled iterations, in columns.
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}/history", tag = "jobs",
    params(HistoryQuery),
    responses(
        (status = 200, description = "The history", body = HistoryView),
    )
)]
async fn history(
    State(api): State<Api>,
    caller: Caller,
    InPath(job_id): InPath<JobId>,
    InQuery(stretch): InQuery<HistoryQuery>,
) -> Result<axum::Json<HistoryView>, ErrorResponse> {
    let (since_s, points) = (stretch.since_s.unwrap_or(3600), stretch.points.unwrap_or(600));
    within("since_s", since_s, 1..=SINCE_S_MAX)?;
    within("points", points, 1..=POINTS_MAX)?;
    let mut period = Period::last(since_s, api.jobs.now().unix_ms);
    if let Some(from) = stretch.from_unix_ms {
        period.from_unix_ms = within_time("from_unix_ms", from)?;
    }
    if let Some(until) = stretch.until_unix_ms {
        period.until_unix_ms = Some(within_time("until_unix_ms", until)?);
    }
    let _view = api.pools.views.take(&caller).await?;
    Ok(axum::Json(api.jobs.job(&job_id).await?.history(period, points).await?))
}

/// Get the summary of a job: what it gained over even shares, how long workers waited, and who was slow.
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}/summary", tag = "jobs",
    responses((status = 200, description = "The summary", body = SummaryView))
)]
async fn summary(
    State(api): State<Api>,
    caller: Caller,
    InPath(job_id): InPath<JobId>,
) -> Result<axum::Json<SummaryView>, ErrorResponse> {
    let _view = api.pools.views.take(&caller).await?;
    Ok(axum::Json(api.jobs.job(&job_id).await?.summary().await?))
}

/// Get the log of a job.
///
/// The recent events of the job, as text. Iterations that changed nothing are not included.
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}/log", tag = "jobs",
    responses((status = 200, description = "The log", body = LogView))
)]
async fn log(
    State(api): State<Api>,
    InPath(job_id): InPath<JobId>,
) -> Result<axum::Json<LogView>, ErrorResponse> {
    let job = api.jobs.job(&job_id).await?;
    // Loads the job into memory, where its log is.
    job.view().await?;
    let entries = job.live().log();
    Ok(axum::Json(LogView { job_id, entries }))
}

//! Enforces the limits of tokens: requests and telemetry per second, jobs and workers. A refusal is 429 with the limit's
//! name.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use evenstep_protocol::{JobId, WorkerId};
use http_body_util::BodyExt;

use super::Api;
use super::admission::{BODY_BYTES_MAX, discard};
use super::problem::ErrorResponse;
use crate::access::{Caller, Limit, Limits, TooFast, Turn, Used};
use crate::jobs::{Job, JobError};

/// Limits the telemetry of the client's token. It runs before the body is read.
pub async fn telemetry(State(limits): State<Arc<Limits>>, request: Request, next: Next) -> Response {
    let Some(caller) = request.extensions().get::<Caller>().cloned() else { return next.run(request).await };
    let declared = request.body().size_hint().exact();
    // A longer body is rejected later, and its length is only a claim.
    let cost = declared.unwrap_or(0).min(BODY_BYTES_MAX as u64);
    if let Err(refusal) = limits.telemetry(&caller, cost, Instant::now()) {
        let response = ErrorResponse::from(refusal);
        if request.headers().contains_key(header::EXPECT) {
            return response.body_unread().into_response();
        }
        discard(request.into_body()).await;
        return response.into_response();
    }
    if declared.is_some() {
        return next.run(request).await;
    }
    let per_s = caller.token_id().and_then(|token_id| limits.of(token_id).get(Limit::TelemetryBytes));
    let (Some(used), Some(per_s)) = (limits.used(&caller), per_s) else { return next.run(request).await };
    let counted = |body: Body| {
        Body::new(body.map_frame(move |frame| {
            used.arrived(frame.data_ref().map_or(0, bytes::Bytes::len), per_s, Instant::now());
            frame
        }))
    };
    next.run(request.map(counted)).await
}

/// Checks that the client may create a job, unless it exists. The result is held until the job is created.
///
/// # Errors
/// The limit of jobs is reached, or an error of the store.
pub async fn new_job(api: &Api, caller: &Caller, job_id: &JobId) -> Result<Option<Turn>, ErrorResponse> {
    let Some((used, most)) = limit(api, caller, Limit::Jobs) else { return Ok(None) };
    let turn = used.turn().await;
    if !matches!(api.jobs.job(job_id).await, Err(JobError::UnknownJob(_))) {
        return Ok(Some(turn));
    }
    let (jobs, _) = used.count(&api.jobs.store().live_workers().await?);
    if jobs < most {
        return Ok(Some(turn));
    }
    let advice = format!("job {job_id} was not created; an operator must delete another job");
    Err(reached(&used, Limit::Jobs, jobs, most, &advice))
}

/// Checks that the client may add a worker, unless it is live. The result is held until it has joined.
///
/// # Errors
/// The limit of workers is reached, the job was deleted, or an error of the store.
pub async fn new_worker(
    api: &Api,
    caller: &Caller,
    job: &Arc<Job>,
    worker: &WorkerId,
) -> Result<Option<Turn>, ErrorResponse> {
    let Some((used, most)) = limit(api, caller, Limit::Workers) else { return Ok(None) };
    let turn = used.turn().await;
    if job.has_live(worker).await? {
        return Ok(Some(turn));
    }
    let (_, workers) = used.count(&api.jobs.store().live_workers().await?);
    if workers < most {
        return Ok(Some(turn));
    }
    let advice = format!("worker {worker} did not join job {}; remove other workers", job.id());
    Err(reached(&used, Limit::Workers, workers, most, &advice))
}

/// The use of the client's token, and its limit.
fn limit(api: &Api, caller: &Caller, limit: Limit) -> Option<(Arc<Used>, u64)> {
    let used = api.limits.used(caller)?;
    let most = api.limits.of(used.token_id()).get(limit)?;
    // Limits of jobs and workers are whole numbers.
    Some((used, most as u64))
}

fn reached(used: &Used, limit: Limit, number: u64, most: u64, advice: &str) -> ErrorResponse {
    used.refused(limit);
    let what = if limit == Limit::Jobs { "jobs exist" } else { "workers are live" };
    let detail = format!(
        "{number} {what} in {}, and the token {} has the limit {} = {most}; {advice}, or get a higher limit from the operator",
        used.jobs(),
        used.token_id(),
        limit.name()
    );
    ErrorResponse::new(StatusCode::TOO_MANY_REQUESTS, limit.slug(), "The token's limit is reached", detail)
}

impl From<TooFast> for ErrorResponse {
    fn from(refusal: TooFast) -> Self {
        let TooFast { limit, token_id, per_s, wait } = refusal;
        let seconds = wait.as_secs().saturating_add(1);
        let detail =
            format!("the token {token_id} has the limit {} = {per_s}; retry in {seconds} s", limit.name());
        Self::new(StatusCode::TOO_MANY_REQUESTS, limit.slug(), "The token's limit is reached", detail)
            .retry_after(seconds)
    }
}

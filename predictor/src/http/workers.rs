//! Workers of a job: join, leave, list, override.

use axum::extract::State;
use axum::http::StatusCode;
use evenstep_protocol::{
    JobId, JoinRequest, JoinResponse, OomReport, OomResponse, WorkerId, WorkerOverride, WorkersView,
};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::{INTEGER_MAX, InPath, Json, within};
use super::jobs::{GLOBAL_BATCH_MAX, check_bounds};
use super::limits;
use super::problem::ErrorResponse;
use crate::access::{Caller, Scope, log_audit};

/// Length limit of a device description, in bytes.
pub const DEVICE_BYTES_MAX: usize = 256;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(join, list))
        .routes(routes!(leave))
        .routes(routes!(out_of_memory))
        .routes(routes!(set_override, delete_override))
}

/// Add a worker from the next iteration that was not requested yet. Joining again renews its lease.
#[utoipa::path(
    post, path = "/v1/jobs/{job_id}/workers", tag = "workers", request_body = JoinRequest,
    responses(
        (status = 200, description = "The live workers and the generation", body = JoinResponse),
        (status = 409, description = "The job has reached its limit of workers, or could not be planned with the worker"),
        (status = 503, description = "The worker joined and left too often; Retry-After is the time to wait, in seconds"),
    )
)]
async fn join(
    State(api): State<Api>,
    caller: Caller,
    InPath(job_id): InPath<JobId>,
    Json(request): Json<JoinRequest>,
) -> Result<axum::Json<JoinResponse>, ErrorResponse> {
    check_bounds(request.min_local_batch, request.max_local_batch)?;
    within("memory_bytes", request.memory_bytes.unwrap_or(1), 1..=INTEGER_MAX)?;
    let device_bytes = request.device.as_ref().map_or(0, String::len);
    if device_bytes > DEVICE_BYTES_MAX {
        return Err(ErrorResponse::invalid(format!(
            "device: {device_bytes} bytes exceed the limit of {DEVICE_BYTES_MAX}"
        )));
    }
    // PostgreSQL text cannot contain NUL.
    if let Some(device) = request.device.as_ref().filter(|device| device.contains('\0')) {
        return Err(ErrorResponse::invalid(format!("device: {device:?} must not contain the character 0")));
    }
    let job = api.jobs.job(&job_id).await?;
    let _turn = limits::new_worker(&api, &caller, &job, &request.worker).await?;
    Ok(axum::Json(job.join(request).await?))
}

/// List all workers that ever joined.
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}/workers", tag = "workers",
    responses((status = 200, description = "The workers", body = WorkersView))
)]
async fn list(
    State(api): State<Api>,
    InPath(job_id): InPath<JobId>,
) -> Result<axum::Json<WorkersView>, ErrorResponse> {
    Ok(axum::Json(api.jobs.job(&job_id).await?.workers().await?))
}

/// Remove a worker from the next iteration on. Removing it again has no effect.
#[utoipa::path(
    delete, path = "/v1/jobs/{job_id}/workers/{worker}", tag = "workers",
    responses(
        (status = 200, description = "The live workers and the generation", body = JoinResponse),
    )
)]
async fn leave(
    State(api): State<Api>,
    caller: Caller,
    InPath((job_id, worker)): InPath<(JobId, WorkerId)>,
) -> Result<axum::Json<JoinResponse>, ErrorResponse> {
    // Leaving is a part of training, so only removals by others are recorded.
    let is_recorded = caller.token_id().is_some() && caller.has(&[Scope::Operator]);
    let entry = is_recorded.then(|| caller.audit("worker.delete", format!("{worker} of job {job_id}")));
    let left = api.jobs.job(&job_id).await?.leave(worker, entry.clone()).await?;
    entry.as_ref().inspect(|entry| log_audit(entry));
    Ok(axum::Json(left))
}

/// Report that a worker ran out of memory.
///
/// The predictor caps the worker below that batch. Allocations already returned become void; request them
/// again in the new generation. A repeated report has no effect.
#[utoipa::path(
    post, path = "/v1/jobs/{job_id}/workers/{worker}/oom", tag = "workers",
    request_body = OomReport,
    responses(
        (status = 200, description = "The cap, and the generation to request allocations in", body = OomResponse),
    )
)]
async fn out_of_memory(
    State(api): State<Api>,
    InPath((job_id, worker)): InPath<(JobId, WorkerId)>,
    Json(report): Json<OomReport>,
) -> Result<axum::Json<OomResponse>, ErrorResponse> {
    within("iteration", report.iteration, 0..=INTEGER_MAX)?;
    within("local_batch", report.local_batch, 2..=INTEGER_MAX)?;
    Ok(axum::Json(api.jobs.job(&job_id).await?.out_of_memory(worker, report).await?))
}

/// Pin, pause or bound a worker from the next iteration that was not requested yet.
#[utoipa::path(
    put, path = "/v1/jobs/{job_id}/workers/{worker}/override", tag = "workers", security(("operator" = []), ()),
    request_body = WorkerOverride,
    responses(
        (status = 204, description = "The override applies until it is deleted"),
        (status = 401, description = "The service has an operator token, and the request lacks it"),
        (status = 409, description = "The job could not be planned any more"),
    )
)]
async fn set_override(
    State(api): State<Api>,
    caller: Caller,
    InPath((job_id, worker)): InPath<(JobId, WorkerId)>,
    Json(wanted): Json<WorkerOverride>,
) -> Result<StatusCode, ErrorResponse> {
    check_bounds(wanted.min_local_batch, wanted.max_local_batch)?;
    within("pinned_local_batch", wanted.pinned_local_batch.unwrap_or(0), 0..=GLOBAL_BATCH_MAX)?;
    if wanted.paused && wanted.pinned_local_batch.is_some() {
        return Err(ErrorResponse::invalid(
            "paused: a worker with a pinned_local_batch cannot be paused; set only one of them",
        ));
    }
    let entry = caller.audit("worker.override", format!("{worker} of job {job_id}: {}", words(&wanted)));
    api.jobs.job(&job_id).await?.set_override(worker, Some(wanted), entry.clone()).await?;
    log_audit(&entry);
    Ok(StatusCode::NO_CONTENT)
}

/// Delete the override of a worker. Has no effect if none is set.
#[utoipa::path(
    delete, path = "/v1/jobs/{job_id}/workers/{worker}/override", tag = "workers", security(("operator" = []), ()),
    responses(
        (status = 204, description = "The worker has no override"),
        (status = 401, description = "The service has an operator token, and the request lacks it"),
    )
)]
async fn delete_override(
    State(api): State<Api>,
    caller: Caller,
    InPath((job_id, worker)): InPath<(JobId, WorkerId)>,
) -> Result<StatusCode, ErrorResponse> {
    let entry = caller.audit("worker.override", format!("{worker} of job {job_id}: removed"));
    api.jobs.job(&job_id).await?.set_override(worker, None, entry.clone()).await?;
    log_audit(&entry);
    Ok(StatusCode::NO_CONTENT)
}

/// The text of an override.
fn words(wanted: &WorkerOverride) -> String {
    let parts = [
        wanted.paused.then(|| "paused".to_owned()),
        wanted.pinned_local_batch.map(|batch| format!("pinned to {batch}")),
        wanted.min_local_batch.map(|batch| format!("at least {batch}")),
        wanted.max_local_batch.map(|batch| format!("at most {batch}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "no change".to_owned() } else { parts.join(", ") }
}

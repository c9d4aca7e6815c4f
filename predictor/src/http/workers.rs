//! Workers of a job: join, leave, and who is there.

use axum::extract::State;
use axum::http::StatusCode;
use evenstep_protocol::{
    JobId, JoinAnswer, JoinRequest, OomAnswer, OomReport, Problem, WorkerId, WorkerOverride, WorkersView,
};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::{INTEGER_MAX, InPath, Json, within};
use super::jobs::check_bounds;
use super::operator::Operator;
use super::problem::Refusal;

/// The longest description of a device, in bytes.
const DEVICE_BYTES_MAX: usize = 256;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(join, list))
        .routes(routes!(leave))
        .routes(routes!(out_of_memory))
        .routes(routes!(set_override, lift_override))
}

/// A worker takes part from the next unanswered iteration on. Joining again renews its lease.
#[utoipa::path(
    post, path = "/v1/jobs/{job_id}/workers", tag = "workers",
    params(("job_id" = String, Path, description = "The job")), request_body = JoinRequest,
    responses(
        (status = 200, description = "Who takes part now, and in which generation", body = JoinAnswer),
        (status = 404, description = "Unknown job", body = Problem),
        (status = 422, description = "A value breaks a rule", body = Problem),
        (status = 503, description = "It came and went too often; Retry-After says when it may come back", body = Problem),
    )
)]
async fn join(
    State(api): State<Api>,
    InPath(job_id): InPath<JobId>,
    Json(request): Json<JoinRequest>,
) -> Result<axum::Json<JoinAnswer>, Refusal> {
    check_bounds(request.min_local_batch, request.max_local_batch)?;
    within("memory_bytes", request.memory_bytes.unwrap_or(1), 1..=INTEGER_MAX)?;
    let device_bytes = request.device.as_ref().map_or(0, String::len);
    if device_bytes > DEVICE_BYTES_MAX {
        return Err(Refusal::invalid(format!("device: {device_bytes} bytes; at most {DEVICE_BYTES_MAX}")));
    }
    // PostgreSQL keeps every character but this one.
    if let Some(device) = request.device.as_ref().filter(|device| device.contains('\0')) {
        return Err(Refusal::invalid(format!("device: {device:?} must not contain the character 0")));
    }
    Ok(axum::Json(api.jobs.job(&job_id).await?.join(request).await?))
}

/// Every worker that ever joined.
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}/workers", tag = "workers",
    params(("job_id" = String, Path, description = "The job")),
    responses((status = 200, description = "The workers", body = WorkersView), (status = 404, description = "Unknown job", body = Problem))
)]
async fn list(
    State(api): State<Api>,
    InPath(job_id): InPath<JobId>,
) -> Result<axum::Json<WorkersView>, Refusal> {
    Ok(axum::Json(api.jobs.job(&job_id).await?.workers().await?))
}

/// A worker leaves, from the next iteration on. Leaving again changes nothing.
#[utoipa::path(
    delete, path = "/v1/jobs/{job_id}/workers/{worker}", tag = "workers",
    params(
        ("job_id" = String, Path, description = "The job"),
        ("worker" = String, Path, description = "The worker, with / written as %2F"),
    ),
    responses(
        (status = 200, description = "Who takes part now, and in which generation", body = JoinAnswer),
        (status = 404, description = "Unknown job or worker", body = Problem),
    )
)]
async fn leave(
    State(api): State<Api>,
    InPath((job_id, worker)): InPath<(JobId, WorkerId)>,
) -> Result<axum::Json<JoinAnswer>, Refusal> {
    Ok(axum::Json(api.jobs.job(&job_id).await?.leave(&worker).await?))
}

/// A worker ran out of memory. It is capped below that batch from now on; what was answered is void, and asked for again in the
/// new generation. Reporting the same again changes nothing.
#[utoipa::path(
    post, path = "/v1/jobs/{job_id}/workers/{worker}/oom", tag = "workers",
    params(
        ("job_id" = String, Path, description = "The job"),
        ("worker" = String, Path, description = "The worker, with / written as %2F"),
    ),
    request_body = OomReport,
    responses(
        (status = 200, description = "Its cap, and the generation to ask in", body = OomAnswer),
        (status = 404, description = "Unknown job or worker", body = Problem),
        (status = 422, description = "A value breaks a rule", body = Problem),
    )
)]
async fn out_of_memory(
    State(api): State<Api>,
    InPath((job_id, worker)): InPath<(JobId, WorkerId)>,
    Json(report): Json<OomReport>,
) -> Result<axum::Json<OomAnswer>, Refusal> {
    within("iteration", report.iteration, 0..=INTEGER_MAX)?;
    within("local_batch", report.local_batch, 2..=INTEGER_MAX)?;
    Ok(axum::Json(api.jobs.job(&job_id).await?.out_of_memory(&worker, &report).await?))
}

/// Pin, pause or bound a worker, from the next unanswered iteration on.
#[utoipa::path(
    put, path = "/v1/jobs/{job_id}/workers/{worker}/override", tag = "workers", security(("operator" = []), ()),
    params(
        ("job_id" = String, Path, description = "The job"),
        ("worker" = String, Path, description = "The worker, with / written as %2F"),
    ),
    request_body = WorkerOverride,
    responses(
        (status = 204, description = "It holds until it is lifted"),
        (status = 401, description = "The service has an operator token, and the request lacks it", body = Problem),
        (status = 404, description = "Unknown job or worker", body = Problem),
        (status = 422, description = "A value breaks a rule", body = Problem),
    )
)]
async fn set_override(
    _operator: Operator,
    State(api): State<Api>,
    InPath((job_id, worker)): InPath<(JobId, WorkerId)>,
    Json(wanted): Json<WorkerOverride>,
) -> Result<StatusCode, Refusal> {
    check_bounds(wanted.min_local_batch, wanted.max_local_batch)?;
    within("pinned_local_batch", wanted.pinned_local_batch.unwrap_or(0), 0..=INTEGER_MAX)?;
    if wanted.paused && wanted.pinned_local_batch.is_some() {
        return Err(Refusal::invalid("paused: a worker with a pinned_local_batch cannot be paused as well"));
    }
    api.jobs.job(&job_id).await?.set_override(&worker, Some(wanted)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lift what an operator wanted of a worker. Lifting nothing changes nothing.
#[utoipa::path(
    delete, path = "/v1/jobs/{job_id}/workers/{worker}/override", tag = "workers", security(("operator" = []), ()),
    params(
        ("job_id" = String, Path, description = "The job"),
        ("worker" = String, Path, description = "The worker, with / written as %2F"),
    ),
    responses(
        (status = 204, description = "Nothing is wanted of it any more"),
        (status = 401, description = "The service has an operator token, and the request lacks it", body = Problem),
        (status = 404, description = "Unknown job or worker", body = Problem),
    )
)]
async fn lift_override(
    _operator: Operator,
    State(api): State<Api>,
    InPath((job_id, worker)): InPath<(JobId, WorkerId)>,
) -> Result<StatusCode, Refusal> {
    api.jobs.job(&job_id).await?.set_override(&worker, None).await?;
    Ok(StatusCode::NO_CONTENT)
}

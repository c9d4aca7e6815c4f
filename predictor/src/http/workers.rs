//! Workers of a job: join, leave, and who is there.

use axum::extract::State;
use evenstep_protocol::{JobId, JoinAnswer, JoinRequest, Problem, WorkerId, WorkersView};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::{InPath, Json};
use super::jobs::check_bounds;
use super::problem::Refusal;

/// The longest description of a device, in bytes.
const DEVICE_BYTES_MAX: usize = 256;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(join, list)).routes(routes!(leave))
}

/// A worker takes part from the next unanswered iteration on. Joining again renews its lease.
#[utoipa::path(
    post, path = "/v1/jobs/{job_id}/workers", tag = "workers",
    params(("job_id" = String, Path, description = "The job")), request_body = JoinRequest,
    responses(
        (status = 200, description = "Who takes part now, and in which generation", body = JoinAnswer),
        (status = 404, description = "Unknown job", body = Problem),
        (status = 422, description = "A value breaks a rule", body = Problem),
    )
)]
async fn join(
    State(api): State<Api>,
    InPath(job_id): InPath<JobId>,
    Json(request): Json<JoinRequest>,
) -> Result<axum::Json<JoinAnswer>, Refusal> {
    check_bounds(request.min_local_batch, request.max_local_batch)?;
    let device_bytes = request.device.as_ref().map_or(0, String::len);
    if device_bytes > DEVICE_BYTES_MAX {
        return Err(Refusal::invalid(format!("device: {device_bytes} bytes; at most {DEVICE_BYTES_MAX}")));
    }
    Ok(axum::Json(api.book.job(&job_id)?.join(request).await?))
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
    Ok(axum::Json(api.book.job(&job_id)?.workers().await?))
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
    Ok(axum::Json(api.book.job(&job_id)?.leave(&worker).await?))
}

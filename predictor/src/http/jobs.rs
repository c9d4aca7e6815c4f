//! Jobs: what is asked for, and what is there.

use axum::extract::State;
use axum::http::StatusCode;
use evenstep_protocol::{JobId, JobSpec, JobView, JobsView, Problem};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::{InPath, Json, within};
use super::problem::Refusal;
use crate::book::WORKERS_MAX;

/// The largest global batch.
const GLOBAL_BATCH_MAX: u64 = 1 << 31;
/// The longest lease: a day.
const LEASE_S_MAX: f64 = 86_400.0;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(put, get, delete)).routes(routes!(list))
}

/// Create a job, or change its wishes from the next unanswered iteration on.
#[utoipa::path(
    put, path = "/v1/jobs/{job_id}", tag = "jobs", params(("job_id" = String, Path, description = "The job")),
    request_body = JobSpec,
    responses(
        (status = 200, description = "It was there; its wishes are now these", body = JobView),
        (status = 201, description = "It is new", body = JobView),
        (status = 409, description = "The global batch of a job that was answered cannot change", body = Problem),
        (status = 422, description = "A value breaks a rule", body = Problem),
    )
)]
async fn put(
    State(api): State<Api>,
    InPath(job_id): InPath<JobId>,
    Json(spec): Json<JobSpec>,
) -> Result<(StatusCode, axum::Json<JobView>), Refusal> {
    check(&spec)?;
    let (view, new) = api.book.put_job(&job_id, spec).await?;
    Ok((if new { StatusCode::CREATED } else { StatusCode::OK }, axum::Json(view)))
}

/// A job at a glance.
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}", tag = "jobs", params(("job_id" = String, Path, description = "The job")),
    responses((status = 200, description = "The job", body = JobView), (status = 404, description = "Unknown job", body = Problem))
)]
async fn get(State(api): State<Api>, InPath(job_id): InPath<JobId>) -> Result<axum::Json<JobView>, Refusal> {
    Ok(axum::Json(api.book.job(&job_id)?.view().await?))
}

/// Delete a job and all its history.
#[utoipa::path(
    delete, path = "/v1/jobs/{job_id}", tag = "jobs", params(("job_id" = String, Path, description = "The job")),
    responses((status = 204, description = "It is gone"), (status = 404, description = "Unknown job", body = Problem))
)]
async fn delete(State(api): State<Api>, InPath(job_id): InPath<JobId>) -> Result<StatusCode, Refusal> {
    api.book.delete_job(&job_id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// All jobs.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", responses((status = 200, description = "The jobs", body = JobsView)))]
async fn list(State(api): State<Api>) -> Result<axum::Json<JobsView>, Refusal> {
    let mut jobs = Vec::new();
    for job in api.book.jobs() {
        jobs.push(job.view().await?);
    }
    Ok(axum::Json(JobsView { jobs }))
}

fn check(spec: &JobSpec) -> Result<(), Refusal> {
    within("global_batch", spec.global_batch, 1..=GLOBAL_BATCH_MAX)?;
    within("quantum", spec.quantum, 1..=spec.global_batch)?;
    if !spec.global_batch.is_multiple_of(spec.quantum) {
        let detail =
            format!("global_batch: {} must be a multiple of quantum, {}", spec.global_batch, spec.quantum);
        return Err(Refusal::invalid(detail));
    }
    check_bounds(spec.min_local_batch, spec.max_local_batch)?;
    within("min_workers", spec.min_workers, 1..=WORKERS_MAX as u64)?;
    if !(1.0..=LEASE_S_MAX).contains(&spec.lease_s) {
        return Err(Refusal::invalid(format!("lease_s: {} must be 1 to {LEASE_S_MAX}", spec.lease_s)));
    }
    if !(0.0..=1.0).contains(&spec.min_gain) {
        return Err(Refusal::invalid(format!("min_gain: {} must be 0 to 1", spec.min_gain)));
    }
    Ok(())
}

/// Checks a floor and a cap.
pub fn check_bounds(floor: Option<u64>, cap: Option<u64>) -> Result<(), Refusal> {
    within("min_local_batch", floor.unwrap_or(0), 0..=GLOBAL_BATCH_MAX)?;
    within("max_local_batch", cap.unwrap_or(1), 1..=GLOBAL_BATCH_MAX)?;
    match (floor, cap) {
        (Some(floor), Some(cap)) if floor > cap => Err(Refusal::invalid(format!(
            "min_local_batch: {floor} must not be above max_local_batch, {cap}"
        ))),
        _ => Ok(()),
    }
}

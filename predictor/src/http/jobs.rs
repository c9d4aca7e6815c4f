//! Jobs: their options and state.

use axum::extract::State;
use axum::http::StatusCode;
use evenstep_core::job::check_spec;
use evenstep_protocol::{JobId, JobSpec, JobView, JobsView, LearningRateRule};
use evenstep_rules::gate::LIMIT_MAX;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::{INTEGER_MAX, InPath, Json, within};
use super::limits;
use super::problem::ErrorResponse;
use crate::access::{Caller, log_audit};
use crate::jobs::WORKERS_MAX;

/// The largest global batch.
pub const GLOBAL_BATCH_MAX: u64 = 1 << 31;
/// Upper limit of leases: one day.
pub const LEASE_S_MAX: f64 = 86_400.0;
/// Limits of a speed from an earlier run, in samples per second.
pub const INITIAL_SPEED_MIN: f64 = 1e-9;
pub const INITIAL_SPEED_MAX: f64 = 1e12;
/// Upper limit of the retention of a job's raw history: three centuries.
pub const KEEP_S_MAX: u64 = 10_000_000_000;
/// Limit of the number of `allowed_sizes`.
pub const ALLOWED_SIZES_MAX: u64 = 64;
/// Upper limit of a ramp, in iterations.
pub const ITERATIONS_MAX: u64 = 1_000_000;
/// Upper limit of a warm-up, in epochs.
pub const WARMUP_EPOCHS_MAX: f64 = 1e6;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(put, get, delete)).routes(routes!(list))
}

/// Create a job, or change its options from the next iteration that was not requested yet.
#[utoipa::path(
    put, path = "/v1/jobs/{job_id}", tag = "jobs",
    request_body = JobSpec,
    responses(
        (status = 200, description = "The job existed; its options are changed", body = JobView),
        (status = 201, description = "The job was created", body = JobView),
        (status = 409, description = "The learning-rate rule cannot change after the first allocation"),
    )
)]
async fn put(
    State(api): State<Api>,
    caller: Caller,
    InPath(job_id): InPath<JobId>,
    Json(spec): Json<JobSpec>,
) -> Result<(StatusCode, axum::Json<JobView>), ErrorResponse> {
    check(&spec)?;
    let entry = caller.audit("job.create", job_id.as_str());
    let _turn = limits::new_job(&api, &caller, &job_id).await?;
    let (view, new) = api.jobs.put_job(&job_id, spec, &entry).await?;
    if new {
        log_audit(&entry);
    }
    Ok((if new { StatusCode::CREATED } else { StatusCode::OK }, axum::Json(view)))
}

/// Get the summary of a job.
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}", tag = "jobs",
    responses((status = 200, description = "The job", body = JobView))
)]
async fn get(
    State(api): State<Api>,
    InPath(job_id): InPath<JobId>,
) -> Result<axum::Json<JobView>, ErrorResponse> {
    Ok(axum::Json(api.jobs.job(&job_id).await?.view().await?))
}

/// Delete a job and all its history.
#[utoipa::path(
    delete, path = "/v1/jobs/{job_id}", tag = "jobs",
    responses((status = 204, description = "Deleted"))
)]
async fn delete(
    State(api): State<Api>,
    caller: Caller,
    InPath(job_id): InPath<JobId>,
) -> Result<StatusCode, ErrorResponse> {
    let entry = caller.audit("job.delete", job_id.as_str());
    let place = api.pools.deletions.take(&caller).await?;
    api.jobs.delete_job(job_id, entry.clone(), place).await?;
    log_audit(&entry);
    Ok(StatusCode::NO_CONTENT)
}

/// List all jobs.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", responses((status = 200, description = "The jobs", body = JobsView)))]
async fn list(State(api): State<Api>, caller: Caller) -> Result<axum::Json<JobsView>, ErrorResponse> {
    let _view = api.pools.views.take(&caller).await?;
    let mut jobs = api.jobs.views().await?;
    jobs.retain(|job| caller.may_use(&job.job_id));
    Ok(axum::Json(JobsView { jobs }))
}

/// Maximum length of a unit.
pub const UNIT_BYTES_MAX: usize = 16;

fn check_unit(unit: &str) -> Result<(), ErrorResponse> {
    if (1..=UNIT_BYTES_MAX).contains(&unit.len()) && unit.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return Ok(());
    }
    Err(ErrorResponse::invalid(format!("unit: {unit:?} must be 1 to {UNIT_BYTES_MAX} lower-case letters")))
}

fn check(spec: &JobSpec) -> Result<(), ErrorResponse> {
    within("global_batch", spec.global_batch, 1..=GLOBAL_BATCH_MAX)?;
    check_unit(&spec.unit)?;
    within("quantum", spec.quantum, 1..=spec.global_batch)?;
    if !spec.global_batch.is_multiple_of(spec.quantum) {
        let detail =
            format!("global_batch: {} must be a multiple of quantum, {}", spec.global_batch, spec.quantum);
        return Err(ErrorResponse::invalid(detail));
    }
    if let Some(each) = spec.per_worker_batch {
        within("per_worker_batch", each, 1..=GLOBAL_BATCH_MAX)?;
        if !each.is_multiple_of(spec.quantum) {
            let detail = format!("per_worker_batch: {each} must be a multiple of quantum, {}", spec.quantum);
            return Err(ErrorResponse::invalid(detail));
        }
    }
    if let Some(min_chunk) = spec.min_chunk {
        within("min_chunk", min_chunk, 1..=GLOBAL_BATCH_MAX)?;
        if !min_chunk.is_multiple_of(spec.quantum) {
            let detail = format!("min_chunk: {min_chunk} must be a multiple of quantum, {}", spec.quantum);
            return Err(ErrorResponse::invalid(detail));
        }
    }
    check_bounds(spec.min_local_batch, spec.max_local_batch)?;
    check_sizes(spec)?;
    within("min_workers", spec.min_workers, 1..=WORKERS_MAX as u64)?;
    check_spec(spec).map_err(|contradiction| ErrorResponse::invalid(contradiction.to_string()))?;
    between("lease_s", spec.lease_s, 1.0, LEASE_S_MAX)?;
    between("min_gain", spec.min_gain, 0.0, 1.0)?;
    if let Some((option, value)) = spec.retired() {
        let detail = format!("{option}: {value} must be omitted; the option was removed");
        return Err(ErrorResponse::invalid(detail));
    }
    let background = spec.background.unwrap_or_default();
    between("background.slow_down_limit", background.slow_down_limit, 1.0, LIMIT_MAX)?;
    within("number of initial_speeds", spec.initial_speeds.len() as u64, 0..=WORKERS_MAX as u64)?;
    for speed in spec.initial_speeds.values() {
        between("initial_speeds", *speed, INITIAL_SPEED_MIN, INITIAL_SPEED_MAX)?;
    }
    spec.keep_s.map_or(Ok(()), |keep_s| within("keep_s", keep_s, 60..=KEEP_S_MAX))?;
    check_learning_rate(spec)
}

fn check_sizes(spec: &JobSpec) -> Result<(), ErrorResponse> {
    let sizes = &spec.allowed_sizes;
    within("number of allowed_sizes", sizes.len() as u64, 0..=ALLOWED_SIZES_MAX)?;
    if let Some(pair) = sizes.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(ErrorResponse::invalid(format!(
            "allowed_sizes: {} must be greater than the {} before it",
            pair[1], pair[0]
        )));
    }
    if let Some(size) = sizes.iter().find(|size| !size.is_multiple_of(spec.quantum)) {
        let detail = format!("allowed_sizes: {size} must be a multiple of quantum, {}", spec.quantum);
        return Err(ErrorResponse::invalid(detail));
    }
    if let Some(last) = sizes.last() {
        within("allowed_sizes", *last, 1..=GLOBAL_BATCH_MAX)?;
    }
    if let Some(distinct) = spec.distinct_sizes {
        within("distinct_sizes", distinct, 2..=WORKERS_MAX as u64)?;
        if !sizes.is_empty() {
            let detail = format!(
                "distinct_sizes: {distinct} cannot be combined with allowed_sizes; set only one of them"
            );
            return Err(ErrorResponse::invalid(detail));
        }
    }
    Ok(())
}

fn check_learning_rate(spec: &JobSpec) -> Result<(), ErrorResponse> {
    let settings = &spec.learning_rate;
    within("learning_rate.ramp_iterations", settings.ramp_iterations.unwrap_or(0), 0..=ITERATIONS_MAX)?;
    if spec.rule != LearningRateRule::Legw {
        return Ok(());
    }
    let (Some(epochs), Some(samples)) = (settings.warmup_epochs, settings.dataset_samples) else {
        let detail = "learning_rate: rule legw requires warmup_epochs and dataset_samples";
        return Err(ErrorResponse::invalid(detail));
    };
    between("learning_rate.warmup_epochs", epochs, 0.0, WARMUP_EPOCHS_MAX)?;
    within("learning_rate.dataset_samples", samples, 1..=INTEGER_MAX)
}

fn between(name: &str, value: f64, least: f64, most: f64) -> Result<(), ErrorResponse> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ErrorResponse::invalid(format!("{name}: {value} must be {least} to {most}")))
}

/// Checks a floor and a cap.
pub fn check_bounds(floor: Option<u64>, cap: Option<u64>) -> Result<(), ErrorResponse> {
    within("min_local_batch", floor.unwrap_or(0), 0..=GLOBAL_BATCH_MAX)?;
    within("max_local_batch", cap.unwrap_or(1), 1..=GLOBAL_BATCH_MAX)?;
    match (floor, cap) {
        (Some(floor), Some(cap)) if floor > cap => Err(ErrorResponse::invalid(format!(
            "min_local_batch: {floor} must not be above max_local_batch, {cap}"
        ))),
        _ => Ok(()),
    }
}

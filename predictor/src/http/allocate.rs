//! `POST /allocate`: plans the batches of an iteration. `GET /allocate`: returns the same allocation to the
//! other ranks.

use std::fmt::Arguments;
use std::time::Instant;

use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use evenstep_protocol::columns::{Bounds, COLUMNS, Number};
use evenstep_protocol::{AllocateRequest, AllocateResponse, JobId, WorkerReport};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::{INTEGER_MAX, InQuery, Json, readings, seconds, within};
use super::problem::ErrorResponse;
use crate::access::Caller;
use crate::jobs::{Allocated, ResponseBytes, WORKERS_MAX};

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(post_allocation, get_allocation))
}

/// Request the allocation of an iteration, and report earlier iterations.
///
/// Idempotent: the response for a given job, attempt and iteration never changes, from any rank, even after a crash. A request for
/// an iteration that was carried out begins another attempt of the run if workers joined or departed since the newest report and
/// the request has no reports.
/// The allocation is durable before it is returned. `server-timing: allocate;dur=` is the time that the
/// service took, in milliseconds.
#[utoipa::path(
    post, path = "/allocate", tag = "allocate", request_body = AllocateRequest,
    responses(
        (status = 200, description = "The allocation", body = AllocateResponse),
        (status = 409, description = "Stale generation; `current_generation` is the current one"),
        (status = 410, description = "The iteration was deleted by retention, and is never planned again"),
        (status = 422, description = "A value breaks a rule, or the bounds do not allow the global batch"),
        (status = 503, description = "Paused, or the store failed; Retry-After is the time to wait, in seconds"),
    )
)]
async fn post_allocation(
    State(api): State<Api>,
    caller: Caller,
    Json(request): Json<AllocateRequest>,
) -> Result<Response, ErrorResponse> {
    let started = Instant::now();
    caller.check_job(&request.job_id)?;
    let allocated = allocate(&api, request).await;
    let outcome = allocated.as_ref().map_or("refused", |done| if done.is_new { "new" } else { "repeated" });
    api.meter.allocated(outcome, started.elapsed());
    Ok(respond(&allocated?.response, started))
}

async fn allocate(api: &Api, request: AllocateRequest) -> Result<Allocated, ErrorResponse> {
    check(&request)?;
    Ok(api.jobs.job(&request.job_id).await?.allocate(request).await?)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct IterationQuery {
    /// The job.
    job_id: JobId,
    /// The iteration.
    iteration: u64,
}

/// Get the allocation of an iteration that was requested before.
#[utoipa::path(
    get, path = "/allocate", tag = "allocate", params(IterationQuery),
    responses(
        (status = 200, description = "The allocation, the same bytes as in the response to the first request", body = AllocateResponse),
        (status = 404, description = "Unknown job, or the iteration has no allocation"),
        (status = 409, description = "The allocation is void, because a worker departed or ran out of memory since"),
        (status = 410, description = "The iteration was deleted by retention"),
    )
)]
async fn get_allocation(
    State(api): State<Api>,
    caller: Caller,
    InQuery(which): InQuery<IterationQuery>,
) -> Result<Response, ErrorResponse> {
    let started = Instant::now();
    caller.check_job(&which.job_id)?;
    within("iteration", which.iteration, 0..=INTEGER_MAX)?;
    let response = api.jobs.job(&which.job_id).await?.allocated(which.iteration).await?;
    Ok(respond(&response, started))
}

fn respond(allocated: &ResponseBytes, started: Instant) -> Response {
    let timing = format!("allocate;dur={:.3}", started.elapsed().as_secs_f64() * 1e3);
    let mut response =
        ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], allocated.body.clone())
            .into_response();
    if let Ok(timing) = HeaderValue::from_str(&timing) {
        response.headers_mut().insert(HeaderName::from_static("server-timing"), timing);
    }
    response
}

fn check(request: &AllocateRequest) -> Result<(), ErrorResponse> {
    within("generation", request.generation, 0..=INTEGER_MAX)?;
    within("iteration", request.iteration, 0..=INTEGER_MAX)?;
    if let Some(global_batch) = request.global_batch {
        within("global_batch", global_batch, 1..=INTEGER_MAX)?;
    }
    within("number of reports", request.reports.len() as u64, 0..=WORKERS_MAX as u64)?;
    for (at, report) in request.reports.iter().enumerate() {
        check_report(format_args!("reports[{at}]"), report, request.iteration)?;
    }
    Ok(())
}

fn check_report(at: Arguments<'_>, report: &WorkerReport, asked: u64) -> Result<(), ErrorResponse> {
    if report.iteration >= asked {
        let detail =
            format!("{at}.iteration: {} must be before the requested iteration, {asked}", report.iteration);
        return Err(ErrorResponse::invalid(detail));
    }
    for column in &COLUMNS {
        let name = format_args!("{at}.{}", column.path);
        match column.number {
            // `check_passes` compares parts with the whole.
            Number::Integer { .. } if column.bounds == Bounds::Part => {}
            Number::Integer { get, .. } => within(name, get(report).unwrap_or(0), 0..=INTEGER_MAX)?,
            Number::Real { get, .. } => {
                get(report)
                    .map_or(Ok(()), |value| check_real(name, value, column.bounds, report.local_batch))?;
            }
        }
    }
    if report.local_batch > 0 && report.compute_time_s <= 0.0 {
        let detail = format!(
            "{at}.compute_time_s: {} must be positive for {} samples",
            report.compute_time_s, report.local_batch
        );
        return Err(ErrorResponse::invalid(detail));
    }
    check_passes(at, report)?;
    readings(format_args!("{at}.drivers"), &report.drivers)
}

fn check_real(name: Arguments<'_>, value: f64, bounds: Bounds, samples: u64) -> Result<(), ErrorResponse> {
    let above_0 = "must be a finite number above 0";
    let (is_within, rule) = match bounds {
        Bounds::NotNegative => (value >= 0.0, "must be finite, 0 or more"),
        Bounds::Positive(_) => (value > 0.0, above_0),
        Bounds::Work => (value > 0.0 || samples == 0, above_0),
        Bounds::Finite => (true, "must be finite; omit it otherwise"),
        Bounds::Seconds | Bounds::Count | Bounds::Part => return seconds(name, value),
    };
    match bounds {
        _ if !is_within || !value.is_finite() => {
            Err(ErrorResponse::invalid(format!("{name}: {value} {rule}")))
        }
        Bounds::Positive(most) if value > most => {
            Err(ErrorResponse::invalid(format!("{name}: {value} must be at most {most}")))
        }
        _ => Ok(()),
    }
}

/// Checks the counts of a tail and its time: it is part of the samples computed, and the base batch and each
/// chunk took at least one pass.
fn check_passes(at: Arguments<'_>, report: &WorkerReport) -> Result<(), ErrorResponse> {
    let mut passes = u64::from(report.local_batch > 0);
    if let Some(tail) = &report.tail {
        within(format_args!("{at}.tail.samples"), tail.samples, 1..=report.local_batch)?;
        within(format_args!("{at}.tail.chunks"), tail.chunks, 1..=tail.samples)?;
        if tail.compute_time_s > report.compute_time_s {
            let detail = format!(
                "{at}.tail.compute_time_s: {} must not be above compute_time_s, {}",
                tail.compute_time_s, report.compute_time_s
            );
            return Err(ErrorResponse::invalid(detail));
        }
        passes = tail.chunks + u64::from(tail.samples < report.local_batch);
    }
    let most = report.local_batch.max(passes);
    report.micro_batches.map_or(Ok(()), |all| within(format_args!("{at}.micro_batches"), all, passes..=most))
}

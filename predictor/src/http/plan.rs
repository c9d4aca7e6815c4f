//! `POST /v1/plan/burst`: computes the number of GPUs for each layer of a model.

use axum::extract::State;
use axum::http::StatusCode;
use evenstep_burst::{BurstPlan, BurstRequest, PlanError, plan, relative_speeds};
use evenstep_protocol::{JobId, WorkerId};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::Json;
use super::problem::ErrorResponse;
use crate::access::Caller;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(burst))
}

/// Plan a burst-parallel job: the number of GPUs for each layer.
///
/// Nothing is stored. The plan depends only on the request and, if it names a job, on the forecast speeds of
/// the job's workers.
#[utoipa::path(
    post, path = "/v1/plan/burst", tag = "plan", request_body = BurstRequest,
    responses(
        (status = 200, description = "The fastest plan that meets the limits", body = BurstPlan),
        (status = 422, description = "A value breaks a rule, or no plan meets the limits (`infeasible`); `detail` is the reason"),
        (status = 429, description = "Other plans are in progress; Retry-After is the time to wait, in seconds"),
    )
)]
async fn burst(
    State(api): State<Api>,
    caller: Caller,
    Json(mut request): Json<BurstRequest>,
) -> Result<axum::Json<BurstPlan>, ErrorResponse> {
    let workers = match request.job_id.take() {
        Some(job_id) => {
            caller.check_job(&job_id)?;
            workers(&api, &job_id, &mut request).await?
        }
        None => Vec::new(),
    };
    let room = api.pools.plans.take(&caller).await?;
    // The permit is held until the plan is done, even if the client has disconnected.
    let planned = tokio::task::spawn_blocking(move || {
        let planned = plan(&request);
        drop(room);
        planned
    });
    let planned = planned.await.map_err(|error| {
        tracing::error!(%error, "a burst-parallel plan panicked");
        let detail = "a defect of the predictor; its log has the panic message";
        ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal error", detail)
    })?;
    Ok(axum::Json(BurstPlan { workers, ..planned? }))
}

/// Sets the speeds of the request to the forecast speeds of the job's workers.
async fn workers(
    api: &Api,
    job_id: &JobId,
    request: &mut BurstRequest,
) -> Result<Vec<WorkerId>, ErrorResponse> {
    if request.speeds.is_some() {
        return Err(ErrorResponse::invalid("speeds: must be omitted if job_id is set; set only one of them"));
    }
    let forecast = api.jobs.job(job_id).await?.forecast().await?;
    if forecast.workers.is_empty() {
        return Err(ErrorResponse::invalid(format!(
            "job_id: job {job_id} has no live workers; start workers or set speeds"
        )));
    }
    request.speeds = Some(relative_speeds(&forecast.workers));
    Ok(forecast.workers.into_iter().map(|worker| worker.worker).collect())
}

impl From<PlanError> for ErrorResponse {
    fn from(error: PlanError) -> Self {
        let detail = error.to_string();
        if error.is_infeasible() {
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            return Self::new(status, "infeasible", "No plan meets the limits", detail);
        }
        Self::invalid(detail)
    }
}

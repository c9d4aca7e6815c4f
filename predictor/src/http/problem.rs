//! Conversion of errors to problem+json: the only place that maps errors to status codes.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use evenstep_protocol::{PROBLEM_CONTENT_TYPE, Problem};
use evenstep_store::{Fault, StoreError};

use crate::jobs::{JobError, Jobs};

/// Seconds after which a client may retry if a job is paused or the store is busy.
const RETRY_AFTER_S: u64 = 1;

/// Size limit of the detail of a problem, in bytes. A detail repeats values of the request, which may be long.
const DETAIL_BYTES_MAX: usize = 1024;

/// An error response.
#[derive(Debug)]
pub struct ErrorResponse {
    problem: Box<Problem>,
    /// Whether the error occurred before the body was read.
    body_unread: bool,
    /// The predictor that serves the job.
    elsewhere: Option<Elsewhere>,
    /// Whether the file of the store is damaged.
    damaged: bool,
}

/// An extension of a response: the file of the store is damaged.
#[derive(Debug, Clone)]
struct StoreDamaged;

/// URL of another predictor. An extension of the response, until [`set_redirect_location`] appends the path of the
/// request.
#[derive(Debug, Clone)]
struct Elsewhere(String);

impl ErrorResponse {
    /// An error response. `slug` is the stable last part of its type. A detail of more than 1,024 bytes is shortened.
    pub fn new(status: StatusCode, slug: &str, title: &str, detail: impl Into<String>) -> Self {
        let problem = Box::new(Problem {
            kind: format!("{}{slug}", Problem::TYPE_PREFIX),
            title: title.into(),
            status: status.as_u16(),
            detail: shortened(detail.into()),
            current_generation: None,
            global_batch: None,
            sum_of_floors: None,
            sum_of_caps: None,
            retry_after_s: None,
        });
        Self { problem, body_unread: false, elsewhere: None, damaged: false }
    }

    /// An error response for a value that breaks a rule: 422.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", "A value breaks a rule", detail)
    }

    /// Marks the error as one that occurred before the body was read. The response then closes the
    /// connection, because the unread rest of the body would make the client's next request on it fail.
    pub fn body_unread(self) -> Self {
        Self { body_unread: true, ..self }
    }

    fn retry(self) -> Self {
        self.retry_after(RETRY_AFTER_S)
    }

    /// Sets `Retry-After`, in seconds.
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.problem.retry_after_s = Some(seconds);
        self
    }
}

fn shortened(mut detail: String) -> String {
    if detail.len() > DETAIL_BYTES_MAX {
        detail.truncate(detail.floor_char_boundary(DETAIL_BYTES_MAX));
        detail.push('…');
    }
    detail
}

impl From<JobError> for ErrorResponse {
    fn from(error: JobError) -> Self {
        let detail = error.to_string();
        match error {
            JobError::UnknownJob(_) => Self::new(StatusCode::NOT_FOUND, "unknown-job", "Unknown job", detail),
            JobError::Elsewhere { url, .. } => {
                let status = StatusCode::TEMPORARY_REDIRECT;
                let mut refusal = Self::new(status, "elsewhere", "Another predictor serves this job", detail);
                refusal.elsewhere = Some(Elsewhere(url));
                refusal
            }
            JobError::UnknownWorker { .. } => {
                Self::new(StatusCode::NOT_FOUND, "unknown-worker", "Unknown worker", detail)
            }
            JobError::NotAllocated { .. } => {
                Self::new(StatusCode::NOT_FOUND, "not-answered", "Iteration not allocated", detail)
            }
            JobError::Gone { .. } => Self::new(StatusCode::GONE, "gone", "Deleted by retention", detail),
            JobError::StaleGeneration { current, .. } | JobError::Void { current, .. } => {
                let mut refusal =
                    Self::new(StatusCode::CONFLICT, "stale-generation", "Stale generation", detail);
                refusal.problem.current_generation = Some(current);
                refusal
            }
            JobError::Loading(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "loading", "The job is being loaded", detail)
                    .retry()
            }
            JobError::Paused { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "paused", "Too few workers", detail).retry()
            }
            JobError::Cooling { source, .. } => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                let seconds = u64::try_from(source.wait_ms).unwrap_or_default().div_ceil(1000);
                Self::new(status, "cooling-down", "Joined and left too often", detail).retry_after(seconds)
            }
            JobError::Infeasible { source, .. } => {
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                let mut refusal =
                    Self::new(status, "infeasible", "The bounds do not allow the global batch", detail);
                refusal.problem.global_batch = Some(source.total);
                refusal.problem.sum_of_floors = Some(source.floors);
                refusal.problem.sum_of_caps = source.caps;
                refusal
            }
            JobError::Unreadable { .. } => {
                tracing::error!(detail, "a request failed because of a stored row");
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unreadable", "The job cannot be planned", detail)
                    .retry()
            }
            JobError::Invalid(_) => Self::invalid(detail),
            JobError::Conflict(_) => {
                Self::new(StatusCode::CONFLICT, "conflict", "Conflicts with the stored state", detail)
            }
            JobError::Store(error) => error.into(),
        }
    }
}

impl From<StoreError> for ErrorResponse {
    /// The database's message is only logged.
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Busy => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", "Too many requests", error.to_string())
                    .retry()
            }
            StoreError::Superseded | StoreError::Closed | StoreError::Fenced | StoreError::OwnerChanging => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Retry later", error.to_string())
                    .retry()
            }
            StoreError::Watched => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", "Too many views", error.to_string())
                    .retry()
            }
            error if error.fault() == Some(Fault::Slow) => {
                tracing::error!(%error, "a request failed because the database took too long");
                let (status, detail) = (StatusCode::SERVICE_UNAVAILABLE, Fault::Slow.words());
                Self::new(status, "timed-out", "Timed out", detail).retry()
            }
            error => {
                tracing::error!(%error, "a request failed because of a store error");
                let fault = error.fault().unwrap_or(Fault::Other);
                let title = "The store failed";
                let response =
                    Self::new(StatusCode::SERVICE_UNAVAILABLE, "store-failed", title, fault.words()).retry();
                Self { damaged: fault == Fault::Damaged, ..response }
            }
        }
    }
}

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.problem).unwrap_or_default();
        let content_type = HeaderValue::from_static(PROBLEM_CONTENT_TYPE);
        let mut response = (status, [(header::CONTENT_TYPE, content_type)], body).into_response();
        if let Some(seconds) = self.problem.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(elsewhere) = self.elsewhere {
            response.extensions_mut().insert(elsewhere);
        }
        if self.damaged {
            response.extensions_mut().insert(StoreDamaged);
        }
        if self.body_unread {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Sets `Location` of a redirect to the same path and query at the predictor that serves the job.
pub async fn set_redirect_location(request: Request, next: Next) -> Response {
    let path = request.uri().path_and_query().cloned();
    let mut response = next.run(request).await;
    if let Some(Elsewhere(url)) = response.extensions_mut().remove() {
        let path = path.as_ref().map_or("/", |path| path.as_str());
        if let Ok(location) = HeaderValue::from_str(&format!("{}{path}", url.trim_end_matches('/'))) {
            response.headers_mut().insert(header::LOCATION, location);
        }
    }
    response
}

/// Marks the store as damaged if a request found it so: the service is then not ready.
pub async fn note_damage(State(jobs): State<Arc<Jobs>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    if response.extensions().get::<StoreDamaged>().is_some() {
        jobs.store().set_damaged();
    }
    response
}

/// The response to a request that took too long: 503. Its writes may still become durable; repeating the
/// request is safe.
pub async fn timed_out(limit: Duration) -> ErrorResponse {
    let detail = format!("no response within {} s; retry, requests are idempotent", limit.as_secs());
    ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, "timed-out", "Timed out", detail)
        .retry()
        .body_unread()
}

/// The response to a panic: 500. Other requests are not affected.
#[expect(clippy::needless_pass_by_value, reason = "the signature that CatchPanicLayer requires")]
pub fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let said =
        panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    tracing::error!(panic = said.unwrap_or("unknown"), "a request panicked");
    let detail = "a defect of the predictor; its log has the panic message";
    ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal error", detail)
        .into_response()
}

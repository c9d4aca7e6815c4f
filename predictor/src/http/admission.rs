//! Admission control: bounds the bytes of all request bodies in flight, and so the memory they take.
//!
//! Telemetry has a separate limit and is rejected with 429 if that is reached; agents keep their samples and
//! retry. All other requests wait for their own limit, so that a flood of telemetry does not block
//! `/allocate`.

mod pace;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use tokio::sync::Semaphore;

use super::BODY_BYTES_MAX;
use super::problem::ErrorResponse;
use pace::RetryEstimator;

/// Limit of telemetry bytes in flight: being read, waiting for the store, or being written.
const TELEMETRY_BYTES_MAX: usize = 64 << 20;
/// Limit of the bytes of all other bodies in flight.
const OTHERS_BYTES_MAX: usize = 64 << 20;
/// Bytes that the smallest request counts for. With it, telemetry and other requests can each take half of
/// the requests in flight.
const REQUEST_BYTES_MIN: usize = 128 << 10;
/// Bytes per semaphore permit.
const UNIT_BYTES: usize = 1 << 10;

/// A limit of bytes.
#[derive(Debug)]
struct ByteLimit {
    free: Arc<Semaphore>,
    bytes_max: usize,
}

impl ByteLimit {
    fn of(bytes_max: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(bytes_max / UNIT_BYTES)), bytes_max }
    }

    fn bytes_in_flight(&self) -> usize {
        self.bytes_max - self.free.available_permits() * UNIT_BYTES
    }
}

/// Admission of telemetry.
#[derive(Debug)]
pub struct Telemetry {
    room: ByteLimit,
    pace: Mutex<RetryEstimator>,
}

impl Telemetry {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            room: ByteLimit::of(TELEMETRY_BYTES_MAX),
            pace: Mutex::new(RetryEstimator::new(Instant::now())),
        })
    }

    fn pace(&self) -> std::sync::MutexGuard<'_, RetryEstimator> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Admits telemetry if its body fits within the limit. Otherwise rejects it without keeping the body.
pub async fn telemetry(State(door): State<Arc<Telemetry>>, request: Request, next: Next) -> Response {
    let bytes = bytes_of(&request);
    let Ok(_room) = door.room.free.clone().try_acquire_many_owned(units(bytes)) else {
        let seconds = door.pace().refuse(bytes, door.room.bytes_in_flight(), Instant::now());
        return reject(request, seconds).await;
    };
    let response = next.run(request).await;
    door.pace().done(bytes, Instant::now());
    response
}

/// Admission of all other requests.
#[derive(Debug)]
pub struct OtherRequests(ByteLimit);

impl OtherRequests {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(ByteLimit::of(OTHERS_BYTES_MAX)))
    }
}

/// Waits until the body of a request fits within the limit, then admits it.
pub async fn others(State(door): State<Arc<OtherRequests>>, request: Request, next: Next) -> Response {
    let room = door.0.free.clone().acquire_many_owned(units(bytes_of(&request))).await;
    // The semaphore is never closed.
    let Ok(_room) = room else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    next.run(request).await
}

/// The bytes that a request counts for: the size of its body, or the size limit if its length is unknown.
fn bytes_of(request: &Request) -> usize {
    let length = request.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    length.unwrap_or(BODY_BYTES_MAX).clamp(REQUEST_BYTES_MIN, BODY_BYTES_MAX)
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

/// Rejects a request with 429. A body of a known and allowed length is read and dropped, so that the
/// connection stays open and the client receives the response. A client that expects `100 Continue` does not
/// get it.
async fn reject(request: Request, seconds: u64) -> Response {
    let detail = format!(
        "{TELEMETRY_BYTES_MAX} bytes of telemetry are in flight: it arrives faster than the store can write; nothing was stored, retry later"
    );
    let refusal = ErrorResponse::new(StatusCode::TOO_MANY_REQUESTS, "busy", "Too many requests", detail);
    let refusal = refusal.retry_after(seconds);
    let waits = request.headers().contains_key(header::EXPECT);
    let length = request.body().size_hint().exact();
    if waits || length.is_none_or(|bytes| bytes > BODY_BYTES_MAX as u64) {
        return refusal.body_unread().into_response();
    }
    match read_past(request.into_body()).await {
        Ok(()) => refusal.into_response(),
        Err(_) => refusal.body_unread().into_response(),
    }
}

async fn read_past(mut body: Body) -> Result<(), axum::Error> {
    while let Some(piece) = body.frame().await {
        drop(piece?);
    }
    Ok(())
}

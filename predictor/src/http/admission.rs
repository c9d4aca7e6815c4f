//! Admission control: reads request bodies, and bounds the bytes of all bodies in memory.
//!
//! Telemetry has a separate limit and is rejected with 429 if that is reached; agents keep their samples and retry. All
//! other requests wait a short time for their own limits, so that a flood of telemetry does not block `/allocate`. Then they
//! are rejected: with 429 if tokens share the limit, and with 503 if the machine is too slow for all requests. Health and
//! metrics have no limit.

mod pace;
mod read;
mod room;
mod turns;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use evenstep_observability::metrics::Family;
use evenstep_observability::metrics::prometheus::proto::MetricFamily;

use super::problem::ErrorResponse;
use crate::access::{Auth, Full, Shares};
use pace::RetryEstimator;
pub use read::{BODY_BYTES_MAX, discard};
use read::{Unread, read};
use room::{ByteLimit, Room};
use turns::{Turns, WAIT_MAX};

/// Limit of telemetry bytes in flight: arrived, waiting for the store, or being written.
const TELEMETRY_BYTES_MAX: usize = 64 << 20;
/// Limit of the bytes of all other bodies in flight.
const OTHERS_BYTES_MAX: usize = 64 << 20;
/// Bytes that the smallest request counts for in the estimate of a retry.
const REQUEST_BYTES_MIN: usize = 128 << 10;
/// Time that a request other than telemetry waits for memory while its body arrives. Requests that wait hold the memory of
/// the part that has arrived, so a longer wait could block all of them.
const BODY_PATIENCE: Duration = Duration::from_secs(1);
/// Limit of requests of each kind that are handled at once.
const PLACES_MAX: usize = 512;
/// Path of allocation requests, for which training waits.
const ALLOCATE: &str = "/allocate";

/// The limits of both kinds of requests.
#[derive(Debug, Clone)]
pub struct Admission {
    /// Admission of telemetry.
    pub telemetry: Arc<Telemetry>,
    /// Admission of all other requests.
    pub others: Arc<OtherRequests>,
}

impl Admission {
    /// Limits that nothing has used yet.
    pub fn new(auth: Auth) -> Self {
        Self { telemetry: Telemetry::new(auth), others: OtherRequests::new(auth) }
    }

    /// The metric of the bytes in memory.
    pub fn families(&self) -> Option<MetricFamily> {
        let mut bytes = Family::gauge("evenstep_http_body_bytes", "Bytes of request bodies in memory.");
        bytes.add([("kind", "telemetry")], self.telemetry.limit.bytes_in_flight() as f64);
        bytes.add([("kind", "other")], self.others.limit.bytes_in_flight() as f64);
        bytes.done()
    }
}

/// Admission of telemetry.
#[derive(Debug)]
pub struct Telemetry {
    limit: ByteLimit,
    places: Shares,
    pace: Mutex<RetryEstimator>,
}

impl Telemetry {
    fn new(auth: Auth) -> Arc<Self> {
        Arc::new(Self {
            limit: ByteLimit::new(auth, TELEMETRY_BYTES_MAX, "bytes for telemetry"),
            places: places(auth, "places for telemetry"),
            pace: Mutex::new(RetryEstimator::new(Instant::now())),
        })
    }

    fn pace(&self) -> MutexGuard<'_, RetryEstimator> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rejection if the limit is reached. Nothing was stored.
    fn busy(&self, full: Full, bytes: usize) -> ErrorResponse {
        let seconds = self.pace().refuse(bytes, self.limit.bytes_in_flight(), Instant::now());
        ErrorResponse::from(full).retry_after(seconds)
    }
}

/// Admits telemetry if its body fits within the limit. Otherwise rejects it without keeping the body.
pub async fn telemetry(State(door): State<Arc<Telemetry>>, request: Request, next: Next) -> Response {
    let mut room = door.limit.room(&request);
    let bytes = bytes_of(&request);
    match admit(request, &mut room, &door.places, Duration::ZERO, Duration::ZERO).await {
        Ok(request) => {
            let response = next.run(request).await;
            door.pace().done(bytes, Instant::now());
            response
        }
        Err(unread) => unread.response(|full| door.busy(full, bytes)),
    }
}

/// Admission of all other requests.
#[derive(Debug)]
pub struct OtherRequests {
    limit: ByteLimit,
    /// Places for `/allocate`, so that no other requests are in its way.
    allocations: Shares,
    others: Shares,
    turns: Arc<Turns>,
}

impl OtherRequests {
    fn new(auth: Auth) -> Arc<Self> {
        Arc::new(Self {
            limit: ByteLimit::new(auth, OTHERS_BYTES_MAX, "bytes for requests"),
            allocations: places(auth, "places for allocations"),
            others: places(auth, "places for requests"),
            turns: Turns::new(),
        })
    }
}

/// Waits until a request fits within the limits, then admits it. Viewers are rejected while training has to wait.
pub async fn others(State(door): State<Arc<OtherRequests>>, request: Request, next: Next) -> Response {
    let mut room = door.limit.room(&request);
    let is_allocation = request.uri().path() == ALLOCATE;
    if !is_allocation && request.method() == Method::GET && door.turns.pass().await.is_err() {
        return late();
    }
    let places = if is_allocation { &door.allocations } else { &door.others };
    let request = match admit(request, &mut room, places, BODY_PATIENCE, WAIT_MAX).await {
        Ok(request) => request,
        Err(unread) => return unread.response(ErrorResponse::from),
    };
    if !is_allocation {
        return next.run(request).await;
    }
    let Ok(turn) = door.turns.take().await else { return late() };
    let response = next.run(request).await;
    // A request that waited for a job to be read says nothing about the load of this machine.
    if response.status() == StatusCode::SERVICE_UNAVAILABLE {
        turn.excuse();
    }
    response
}

fn late() -> Response {
    let detail = "too many requests are in progress; nothing was changed, retry later";
    let status = StatusCode::SERVICE_UNAVAILABLE;
    ErrorResponse::new(status, "busy", "Too many requests", detail).retry_after(1).into_response()
}

fn places(auth: Auth, what: &'static str) -> Shares {
    Shares::new(auth, PLACES_MAX, what)
}

/// Reads a request, and then waits for a place to be handled. Requests that wait for a place hold only their own bytes, and
/// those with a place need no more bytes, so they never wait for each other.
async fn admit(
    request: Request,
    room: &mut Room,
    places: &Shares,
    body_patience: Duration,
    place_patience: Duration,
) -> Result<Request, Unread> {
    let request = read(request, room, body_patience).await?;
    let place = room.take_place(places, place_patience).await;
    place.map(|()| request).map_err(|full| Unread::Full { full, discarded: true })
}

/// The bytes that a request counts for if it is rejected: the size of its body, or the size limit if its length is unknown.
fn bytes_of(request: &Request) -> usize {
    let length = request.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    length.unwrap_or(BODY_BYTES_MAX).clamp(REQUEST_BYTES_MIN, BODY_BYTES_MAX)
}

//! Who is let in: the bodies that are under way at once are bounded in bytes, so that memory is, whatever comes.
//!
//! Telemetry has a room of its own and is sent away where that is full: agents keep what they have and come again. All other
//! requests wait for their turn in another room, so that no flood of telemetry keeps `/allocate` from being answered.

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
use super::problem::Refusal;
use pace::Pace;

/// Bytes of telemetry under way at once: read, waiting for the store, or being written.
const TELEMETRY_BYTES_MAX: usize = 64 << 20;
/// Bytes of all other bodies under way at once.
const OTHERS_BYTES_MAX: usize = 64 << 20;
/// What the smallest request counts for: half of all requests that may be under way can be telemetry, the other half not.
const REQUEST_BYTES_MIN: usize = 128 << 10;
/// Bytes in one permit.
const UNIT_BYTES: usize = 1 << 10;

/// Room for bodies.
#[derive(Debug)]
struct Room {
    free: Arc<Semaphore>,
    bytes_max: usize,
}

impl Room {
    fn of(bytes_max: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(bytes_max / UNIT_BYTES)), bytes_max }
    }

    fn bytes_taken(&self) -> usize {
        self.bytes_max - self.free.available_permits() * UNIT_BYTES
    }
}

/// The door for telemetry.
#[derive(Debug)]
pub struct Telemetry {
    room: Room,
    pace: Mutex<Pace>,
}

impl Telemetry {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { room: Room::of(TELEMETRY_BYTES_MAX), pace: Mutex::new(Pace::new(Instant::now())) })
    }

    fn pace(&self) -> std::sync::MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets telemetry in where there is room for its body, else sends it away before the body is kept.
pub async fn telemetry(State(door): State<Arc<Telemetry>>, request: Request, next: Next) -> Response {
    let bytes = bytes_of(&request);
    let Ok(_room) = door.room.free.clone().try_acquire_many_owned(units(bytes)) else {
        let seconds = door.pace().refuse(bytes, door.room.bytes_taken(), Instant::now());
        return send_away(request, seconds).await;
    };
    let response = next.run(request).await;
    door.pace().done(bytes, Instant::now());
    response
}

/// The door for all other requests.
#[derive(Debug)]
pub struct Others(Room);

impl Others {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Room::of(OTHERS_BYTES_MAX)))
    }
}

/// Lets a request in once there is room for its body.
pub async fn others(State(door): State<Arc<Others>>, request: Request, next: Next) -> Response {
    let room = door.0.free.clone().acquire_many_owned(units(bytes_of(&request))).await;
    // Nobody closes the semaphore.
    let Ok(_room) = room else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    next.run(request).await
}

/// What a request counts for: its body, or the largest that there may be where it does not say how long it is.
fn bytes_of(request: &Request) -> usize {
    let length = request.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    length.unwrap_or(BODY_BYTES_MAX).clamp(REQUEST_BYTES_MIN, BODY_BYTES_MAX)
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

/// Says 429. A body of a known, allowed length is read past, piece by piece, so that the connection lives on and the sender hears
/// the answer; whoever waits to be told to go on with its body is told not to.
async fn send_away(request: Request, seconds: u64) -> Response {
    let detail = format!(
        "{TELEMETRY_BYTES_MAX} bytes of telemetry are under way: the store is slower than what comes in; nothing was stored"
    );
    let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "busy", "Too much at once", detail);
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

//! Open streams of server-sent events, and their limit.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use futures_util::Stream;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::super::problem::ErrorResponse;
use super::feed::Feed;

/// Limit of open streams.
const STREAMS_MAX: usize = 256;
/// Longest time without an event or a comment. A client that receives nothing for longer has lost the stream.
pub const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// Pause after which a client should reconnect.
pub const RETRY_AFTER: Duration = Duration::from_secs(2);

/// The open streams.
#[derive(Debug, Clone)]
pub struct Streams {
    places: Arc<Semaphore>,
    ending: watch::Receiver<bool>,
    /// The summary of all jobs.
    pub feed: Arc<Feed>,
}

impl Streams {
    /// Returns a counter with no open stream. Streams end when `ending` becomes true.
    pub fn new(ending: watch::Receiver<bool>) -> Self {
        Self { places: Arc::new(Semaphore::new(STREAMS_MAX)), ending, feed: Arc::default() }
    }

    /// Counts a stream until the returned value is dropped.
    ///
    /// # Errors
    /// A rejection if the limit is reached.
    pub fn enter(&self) -> Result<OwnedSemaphorePermit, ErrorResponse> {
        self.places.clone().try_acquire_owned().map_err(|_| {
            let detail = format!("{STREAMS_MAX} streams are open, the limit; close one or retry later");
            let status = StatusCode::SERVICE_UNAVAILABLE;
            ErrorResponse::new(status, "busy", "Too many streams", detail).retry_after(ALIVE_EVERY.as_secs())
        })
    }

    /// Completes when the service shuts down.
    pub async fn ended(&mut self) {
        // The sender is dropped only with the service.
        let _ = self.ending.wait_for(|ending| *ending).await;
    }
}

/// Sends the events of a stream, and comments while it has none.
pub fn events<S: Stream<Item = Result<Event, Infallible>> + Send + 'static>(
    stream: S,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    Sse::new(stream).keep_alive(KeepAlive::new().interval(ALIVE_EVERY))
}

/// An event with a JSON value. If the value cannot be serialized, the event holds the error.
pub fn event(name: &str, value: &impl Serialize) -> Event {
    Event::default()
        .event(name)
        .json_data(value)
        .unwrap_or_else(|error| Event::default().comment(error.to_string()))
}

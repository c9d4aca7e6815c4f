//! Sends events about stragglers to a URL (`--webhook`). The queue is bounded, and nothing waits for the receiver.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;
use std::{fmt, io};

use evenstep_protocol::NodeStraggler;
use serde::Serialize;
use ureq::Agent;

/// Maximum number of events that wait; further ones are dropped and logged.
const QUEUE_MAX: usize = 1_000;
/// Time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Number of attempts for an event.
const ATTEMPTS_MAX: u32 = 8;
/// Pause after the first failed attempt; it doubles with each further one.
const PAUSE: Duration = Duration::from_secs(1);

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum EventKind {
    /// A worker became a straggler.
    #[serde(rename = "straggler.flagged")]
    Flagged,
    /// A worker is not a straggler any more: it recovered, or left long ago.
    #[serde(rename = "straggler.cleared")]
    Cleared,
}

/// An event, as it is sent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Event {
    /// The kind.
    #[serde(rename = "event")]
    pub kind: EventKind,
    /// Time of the event, in milliseconds since 1970.
    at_unix_ms: i64,
    /// The part of the worker's name before the first slash.
    node: String,
    /// The worker, and the time at which it was flagged. Both together with the job identify the straggler.
    #[serde(flatten)]
    of: NodeStraggler,
}

impl Event {
    /// An event about a worker that is, or was, a straggler.
    pub fn new(kind: EventKind, at_unix_ms: i64, of: NodeStraggler) -> Self {
        Self { kind, at_unix_ms, node: of.worker.node().to_owned(), of }
    }
}

/// The queue of events to a URL. When it is dropped, the thread ends after the events in the queue, or with the process.
pub struct Webhook(SyncSender<Event>);

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may contain a secret.
        f.write_str("Webhook(..)")
    }
}

impl Webhook {
    /// Starts the thread that sends to `url`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(url: String) -> io::Result<Self> {
        let (queue, events) = sync_channel(QUEUE_MAX);
        let run = move || send_all(&url, &events);
        thread::Builder::new().name("webhook".to_owned()).spawn(run)?;
        Ok(Self(queue))
    }

    /// Adds an event to the queue. Never waits.
    pub fn send(&self, event: Event) {
        if let Err(TrySendError::Full(event) | TrySendError::Disconnected(event)) = self.0.try_send(event) {
            tracing::warn!(job_id = %event.of.job_id, worker = %event.of.worker, "an event was dropped: {QUEUE_MAX} events wait for the webhook");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the pause before an event is sent again")]
fn send_all(url: &str, events: &Receiver<Event>) {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_global(Some(TIMEOUT))
        .user_agent(concat!("evenstep-predictor/", env!("CARGO_PKG_VERSION")))
        .build();
    let agent = Agent::from(config);
    while let Ok(event) = events.recv() {
        let mut pause = PAUSE;
        for attempt in 1..=ATTEMPTS_MAX {
            // ureq's errors do not contain the URL, which may have a secret.
            let (failure, may_repeat) = match agent.post(url).send_json(&event) {
                Ok(response) if response.status().is_success() => break,
                Ok(response) => {
                    let status = response.status().as_u16();
                    (format!("status {status}"), status >= 500 || matches!(status, 408 | 425 | 429))
                }
                Err(error) => (error.to_string(), true),
            };
            if attempt == ATTEMPTS_MAX || !may_repeat {
                tracing::warn!(job_id = %event.of.job_id, worker = %event.of.worker, failure, attempt, "an event was dropped: the webhook did not accept it");
                break;
            }
            tracing::info!(failure, attempt, ?pause, "the webhook failed; trying again");
            thread::sleep(pause);
            pause *= 2;
        }
    }
}

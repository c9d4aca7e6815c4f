//! The uplink: sends batches from the spool to the predictor. Samples stay in the spool until the predictor
//! acknowledges them.
//!
//! The uplink runs on its own thread, because it may wait for an unreachable predictor for days. A batch
//! without a response is sent again, so delivery is at least once. The predictor stores each (node, boot id,
//! sequence number) once.

mod verdict;

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenstep_client::http::{Method, Request, TimeLimit, Transport, TransportConfig};
use evenstep_client::{Backoff, ClientTls, Servers, SystemClock};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::spool::{BATCH_SAMPLES_MAX, Batch, Spool, SpoolError};
use verdict::{RetryReason, Verdict, classify};

/// Path of the telemetry endpoint.
const PATH: &str = "/v1/telemetry";
/// Number of samples after which a batch is sent: one request for five samples costs the predictor a fifth of five.
const SAMPLES_PER_BATCH: u32 = 5;
/// Longest time between batches: pages and forecasts show no older readings.
const SEND_EVERY_MAX: Duration = Duration::from_secs(5);
/// Timeout of a request, per server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a request during shutdown.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum response size; the predictor's responses are smaller.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Maximum time for sending the remaining samples during shutdown. Other samples stay in the spool for the
/// next start.
const LAST_SENDING: Duration = Duration::from_secs(2);
/// First pause after a failure, before jitter.
const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Longest pause after a failure, unless the predictor requests a longer one.
const RETRY_LONGEST: Duration = Duration::from_secs(30);
/// Longest pause that a predictor can request.
const RETRY_REQUESTED_LONGEST: Duration = Duration::from_secs(300);

/// State of the uplink.
#[derive(Debug, Clone, Default, Serialize)]
pub struct UplinkState {
    /// The server to which batches go: the one that responded last.
    pub server: String,
    /// Samples that the predictor acknowledged.
    pub samples_acknowledged: u64,
    /// Acknowledged samples that the predictor already had.
    pub duplicates: u64,
    /// Acknowledged batches.
    pub batches_acknowledged: u64,
    /// Failed attempts that were or will be repeated.
    pub failed_attempts: u64,
    /// Reason of the last failed attempt; absent after a success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
    /// Maximum samples per batch; lowered when the predictor rejects a batch as too large.
    pub batch_samples_max: usize,
}

/// Sends the samples of one agent.
pub struct Uplink {
    spool: Arc<Mutex<Spool>>,
    state: Arc<Mutex<UplinkState>>,
    transport: Transport,
    send_every: Duration,
    backoff: Backoff,
    jitter: ChaCha8Rng,
    batch_samples_max: usize,
}

/// Outcome of one attempt.
#[derive(Debug, PartialEq)]
enum Progress {
    /// No samples are waiting.
    Idle,
    /// The spool advanced, or the next batch will be smaller.
    Advanced,
    /// No progress; pause this long before the next attempt.
    Retry(Duration),
}

impl Uplink {
    /// Creates an uplink that sends samples from `spool` to one of `servers`. `interval` is the time between
    /// samples. The jitter of pauses depends only on `seed`.
    pub fn new(
        spool: Arc<Mutex<Spool>>,
        state: Arc<Mutex<UplinkState>>,
        servers: &Servers,
        tls: ClientTls,
        interval: Duration,
        seed: u64,
    ) -> Self {
        let config = TransportConfig {
            user_agent: concat!("evenstep-agent/", env!("CARGO_PKG_VERSION")),
            response_bytes_max: ANSWER_BYTES_MAX,
            limit: TimeLimit::Attempt,
            clock: Arc::new(SystemClock),
            tls,
        };
        let uplink = Self {
            spool,
            state,
            transport: Transport::new(servers, config),
            send_every: (SAMPLES_PER_BATCH * interval).min(SEND_EVERY_MAX),
            backoff: Backoff::new(RETRY_FIRST, RETRY_LONGEST),
            jitter: ChaCha8Rng::seed_from_u64(seed),
            batch_samples_max: BATCH_SAMPLES_MAX,
        };
        let first = uplink.transport.first_server();
        uplink.update(|state| {
            state.server = first;
            state.batch_samples_max = BATCH_SAMPLES_MAX;
        });
        uplink
    }

    /// Runs until `stop` receives a message or its sender is dropped. Then tries to send the remaining
    /// samples.
    pub fn run(mut self, stop: &Receiver<()>) {
        let mut wait = self.send_every;
        while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(wait) {
            wait = loop {
                match self.step(REQUEST_TIMEOUT) {
                    Progress::Idle => break self.send_every,
                    Progress::Retry(wait) => break wait,
                    Progress::Advanced if stop.try_recv() != Err(TryRecvError::Empty) => {
                        return self.send_remaining();
                    }
                    Progress::Advanced => {}
                }
            };
        }
        self.send_remaining();
    }

    fn send_remaining(&mut self) {
        let start = Instant::now();
        while self.step(LAST_REQUEST_TIMEOUT) == Progress::Advanced && start.elapsed() < LAST_SENDING {}
    }

    fn step(&mut self, timeout: Duration) -> Progress {
        let batch = self.lock_spool().next_batch(self.batch_samples_max);
        let batch = match batch {
            Ok(Some(batch)) => batch,
            Ok(None) => return Progress::Idle,
            Err(error) => return self.retry_spool(&error),
        };
        match self.send(&batch, timeout) {
            Verdict::Acknowledged { next_sequence, duplicates } => {
                let acknowledged = self.lock_spool().acknowledge(&batch, next_sequence);
                let samples = match acknowledged {
                    Ok(samples) => samples,
                    Err(error) => return self.retry_spool(&error),
                };
                self.backoff.reset();
                self.update(|state| {
                    state.samples_acknowledged += samples;
                    state.duplicates += duplicates;
                    state.batches_acknowledged += 1;
                    if state.last_failure.take().is_some() {
                        tracing::info!("the predictor accepts telemetry again");
                    }
                });
                Progress::Advanced
            }
            Verdict::TooLarge if batch.samples.len() > 1 => {
                self.set_batch_samples_max(batch.samples.len() / 2);
                Progress::Advanced
            }
            Verdict::TooLarge => {
                let step = self.reject(&batch, "413: a single sample is too large for the predictor");
                self.set_batch_samples_max(BATCH_SAMPLES_MAX);
                step
            }
            Verdict::Poison { reason } => self.reject(&batch, &reason),
            Verdict::Retry(unheard) => self.retry(&unheard.reason, unheard.after),
        }
    }

    fn send(&self, batch: &Batch, timeout: Duration) -> Verdict {
        let body = match serde_json::to_vec(batch) {
            Ok(body) => body,
            Err(error) => return Verdict::Poison { reason: error.to_string() },
        };
        let request = Request { method: &Method::POST, path: PATH, body: Some(&body) };
        let sent = self.transport.send(request, timeout, |response| classify(&response, batch));
        let first = self.transport.first_server();
        self.update(|state| state.server = first);
        sent.unwrap_or_else(|unreachable| {
            // Waits until the latest time that any server requested.
            let after = unreachable.attempts.iter().filter_map(|(_, unheard)| unheard.after).max();
            Verdict::Retry(RetryReason { reason: unreachable.to_string(), after })
        })
    }

    fn reject(&mut self, batch: &Batch, reason: &str) -> Progress {
        let (sequence, samples) = (batch.sequence, batch.samples.len());
        tracing::error!(
            reason,
            sequence,
            samples,
            "the predictor rejected a batch; moving it to the rejected directory"
        );
        let aside = self.lock_spool().reject(batch, reason);
        match aside {
            Ok(()) => Progress::Advanced,
            Err(error) => self.retry_spool(&error),
        }
    }

    /// Pauses after an error of the spool. It says nothing about the predictor.
    fn retry_spool(&mut self, error: &SpoolError) -> Progress {
        tracing::error!(%error, "cannot use the spool; retrying");
        Progress::Retry(self.backoff.next_pause_with_jitter(self.jitter.random()))
    }

    fn retry(&mut self, reason: &str, after: Option<Duration>) -> Progress {
        let own = self.backoff.next_pause_with_jitter(self.jitter.random());
        let wait = after.map_or(own, |after| own.max(after.min(RETRY_REQUESTED_LONGEST)));
        self.update(|state| {
            state.failed_attempts += 1;
            // Logged once per outage, not for each attempt.
            if state.last_failure.replace(reason.to_owned()).is_none() {
                tracing::warn!(
                    reason,
                    "the predictor is unreachable or rejects telemetry; samples stay in the spool"
                );
            }
        });
        Progress::Retry(wait)
    }

    fn set_batch_samples_max(&mut self, samples: usize) {
        tracing::info!(samples, "changed the maximum number of samples per batch");
        self.batch_samples_max = samples;
        self.update(|state| state.batch_samples_max = samples);
    }

    fn lock_spool(&self) -> std::sync::MutexGuard<'_, Spool> {
        self.spool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut UplinkState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

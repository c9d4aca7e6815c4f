//! The uplink: what the spool holds goes to the predictor, in batches, and stays in the spool until it is
//! acknowledged.
//!
//! It runs on a thread of its own, as it waits on a network that may be away for days. A batch that got no answer is
//! sent again: at least once on the wire, and (node, boot id, sequence number) make it exactly once in the store.

mod verdict;

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenstep_client::http::{Method, Request, TimeLimit, Transport, TransportConfig};
use evenstep_client::{Backoff, Servers, SystemClock};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::spool::{BATCH_SAMPLES_MAX, Batch, Spool};
use verdict::{Unheard, Verdict, judge};

/// Where batches go, on every server.
const PATH: &str = "/v1/telemetry";
/// The longest wait for one answer, whoever of several servers gives it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest wait for the answer to what is left when the agent is told to stop.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// An answer longer than this is none of the predictor's.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// The time for sending what is left then; whatever still is waits in the spool for the next start.
const LAST_SENDING: Duration = Duration::from_secs(4);
/// The first pause after a failure, before jitter.
const RETRY_FIRST: Duration = Duration::from_millis(500);
/// The longest pause after a failure, unless the predictor requests a longer one.
const RETRY_LONGEST: Duration = Duration::from_secs(30);
/// The longest pause that a predictor may request.
const RETRY_REQUESTED_LONGEST: Duration = Duration::from_secs(300);

/// How the uplink fares.
#[derive(Debug, Clone, Default, Serialize)]
pub struct UplinkState {
    /// Where batches go now: of several servers, the one that answered last.
    pub server: String,
    /// Samples that the predictor acknowledged.
    pub samples_acknowledged: u64,
    /// Of these, samples that it had already.
    pub duplicates: u64,
    /// Batches that it acknowledged.
    pub batches_acknowledged: u64,
    /// Attempts that led to nothing and were or will be made again.
    pub failed_attempts: u64,
    /// What the last such attempt met; absent once one succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
    /// Samples in one batch, at most: lowered where the predictor finds batches too large.
    pub batch_samples_max: usize,
}

/// The sending end of one agent.
pub struct Uplink {
    spool: Arc<Mutex<Spool>>,
    state: Arc<Mutex<UplinkState>>,
    transport: Transport,
    send_every: Duration,
    backoff: Backoff,
    jitter: ChaCha8Rng,
    batch_samples_max: usize,
}

/// What came of one attempt.
#[derive(Debug, PartialEq)]
enum Step {
    /// Nothing waits.
    Idle,
    /// The spool moved on, or the next batch will be smaller.
    Went,
    /// Nothing moved; the next attempt should wait this long.
    Retry(Duration),
}

impl Uplink {
    /// Sends what `spool` holds to one of `servers` every `send_every`. The jitter of pauses depends on `seed` alone.
    pub fn new(
        spool: Arc<Mutex<Spool>>,
        state: Arc<Mutex<UplinkState>>,
        servers: &Servers,
        send_every: Duration,
        seed: u64,
    ) -> Self {
        let config = TransportConfig {
            user_agent: concat!("evenstep-agent/", env!("CARGO_PKG_VERSION")),
            response_bytes_max: ANSWER_BYTES_MAX,
            limit: TimeLimit::Attempt,
            clock: Arc::new(SystemClock),
        };
        let uplink = Self {
            spool,
            state,
            transport: Transport::new(servers, config),
            send_every,
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

    /// Runs until `stop` says so or its sender is gone, then tries once more to send what is left.
    pub fn run(mut self, stop: &Receiver<()>) {
        let mut wait = self.send_every;
        while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(wait) {
            wait = loop {
                match self.step(REQUEST_TIMEOUT) {
                    Step::Idle => break self.send_every,
                    Step::Retry(wait) => break wait,
                    Step::Went if stop.try_recv() != Err(TryRecvError::Empty) => return self.send_rest(),
                    Step::Went => {}
                }
            };
        }
        self.send_rest();
    }

    fn send_rest(&mut self) {
        let start = Instant::now();
        while self.step(LAST_REQUEST_TIMEOUT) == Step::Went && start.elapsed() < LAST_SENDING {}
    }

    fn step(&mut self, timeout: Duration) -> Step {
        let batch = self.lock_spool().next_batch(self.batch_samples_max);
        let batch = match batch {
            Ok(Some(batch)) => batch,
            Ok(None) => return Step::Idle,
            Err(error) => return self.retry(&error.to_string(), None),
        };
        match self.send(&batch, timeout) {
            Verdict::Acknowledged { next_sequence, duplicates } => {
                let acknowledged = self.lock_spool().acknowledge(&batch, next_sequence);
                let samples = match acknowledged {
                    Ok(samples) => samples,
                    Err(error) => return self.retry(&error.to_string(), None),
                };
                self.backoff.reset();
                self.update(|state| {
                    state.samples_acknowledged += samples;
                    state.duplicates += duplicates;
                    state.batches_acknowledged += 1;
                    if state.last_failure.take().is_some() {
                        tracing::info!("the predictor takes telemetry again");
                    }
                });
                Step::Went
            }
            Verdict::TooLarge if batch.samples.len() > 1 => {
                self.set_batch_samples_max(batch.samples.len() / 2);
                Step::Went
            }
            Verdict::TooLarge => {
                let step = self.set_aside(&batch, "413: one sample alone is too large for the predictor");
                self.set_batch_samples_max(BATCH_SAMPLES_MAX);
                step
            }
            Verdict::Poison { reason } => self.set_aside(&batch, &reason),
            Verdict::Retry(unheard) => self.retry(&unheard.reason, unheard.after),
        }
    }

    fn send(&self, batch: &Batch, timeout: Duration) -> Verdict {
        let body = match serde_json::to_vec(batch) {
            Ok(body) => body,
            Err(error) => return Verdict::Poison { reason: error.to_string() },
        };
        let request = Request { method: &Method::POST, path: PATH, body: Some(&body) };
        let sent = self.transport.send(request, timeout, |response| judge(&response, batch));
        let first = self.transport.first_server();
        self.update(|state| state.server = first);
        sent.unwrap_or_else(|unreachable| {
            // Whoever said when to come back is left alone until then.
            let after = unreachable.attempts.iter().filter_map(|(_, unheard)| unheard.after).max();
            Verdict::Retry(Unheard { reason: unreachable.to_string(), after })
        })
    }

    fn set_aside(&mut self, batch: &Batch, reason: &str) -> Step {
        let (sequence, samples) = (batch.sequence, batch.samples.len());
        tracing::error!(reason, sequence, samples, "the predictor refused a batch: it is set aside");
        let aside = self.lock_spool().set_aside(batch, reason);
        match aside {
            Ok(()) => Step::Went,
            Err(error) => self.retry(&error.to_string(), None),
        }
    }

    fn retry(&mut self, reason: &str, after: Option<Duration>) -> Step {
        let own = self.backoff.next_pause_with_jitter(self.jitter.random());
        let wait = after.map_or(own, |after| own.max(after.min(RETRY_REQUESTED_LONGEST)));
        self.update(|state| {
            state.failed_attempts += 1;
            // Said once for each outage, not for each attempt.
            if state.last_failure.replace(reason.to_owned()).is_none() {
                tracing::warn!(reason, "the predictor does not take telemetry: samples wait in the spool");
            }
        });
        Step::Retry(wait)
    }

    fn set_batch_samples_max(&mut self, samples: usize) {
        tracing::info!(samples, "samples in one batch, at most, from now on");
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

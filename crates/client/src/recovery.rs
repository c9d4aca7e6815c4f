//! Restoring the connection to an unreachable predictor.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::Duration;

use crate::backlog::Backlog;
use crate::backoff::Backoff;
use crate::error::Error;
use crate::registration::Registration;
use crate::servers::Servers;

/// State of an attempt to register a run again.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) registration: Registration,
    pub(crate) backlog: Backlog,
    /// Whether the predictor has accepted this run before. The job's past then belongs to this run.
    pub(crate) registered: bool,
    /// Whether the predictor has returned an allocation to this run.
    pub(crate) begun: bool,
    pub(crate) backoff: Backoff,
    pub(crate) find_servers: FindServers,
}

/// Looks for servers before each attempt; `None` keeps the current ones.
#[derive(Clone)]
pub(crate) struct FindServers(Arc<dyn Fn() -> Option<Servers> + Send + Sync>);

impl FindServers {
    pub(crate) fn new(find: impl Fn() -> Option<Servers> + Send + Sync + 'static) -> Self {
        Self(Arc::new(find))
    }
}

impl Default for FindServers {
    fn default() -> Self {
        Self::new(|| None)
    }
}

impl fmt::Debug for FindServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FindServers")
    }
}

/// The outcome of an attempt.
#[derive(Debug)]
pub(crate) enum Attempted {
    /// The run is registered in this generation, and late reports are delivered.
    Connected(u64),
    /// The predictor will never accept this run.
    GivenUp(Error),
    /// Another attempt is due after this pause.
    Retry(Duration),
}

impl Recovery {
    /// Registers the run, begins its attempt, and delivers late reports.
    pub(crate) fn attempt(&mut self) -> Attempted {
        if let Some(servers) = (self.find_servers.0)() {
            self.registration.client().set_servers(&servers);
        }
        let joined = if self.registered { self.registration.register() } else { self.registration.begin() };
        let outcome = joined.and_then(|joined| {
            if !self.begun {
                self.registration.begin_attempt(joined.generation)?;
                self.begun = true;
            }
            self.registration.deliver_late_reports(joined.generation, &self.backlog)?;
            Ok(joined.generation)
        });
        match outcome {
            Ok(generation) => Attempted::Connected(generation),
            // A job that rejects this run at the start will always reject it.
            Err(error) if !self.registered && error.kind.is_permanent() => Attempted::GivenUp(error),
            Err(_) => Attempted::Retry(self.backoff.next_pause()),
        }
    }
}

/// A thread that makes attempts until one is final. It ends when this handle is dropped.
#[derive(Debug)]
pub(crate) struct BackgroundRecovery {
    outcome: Receiver<Result<u64, Error>>,
    _stop: Sender<()>,
}

impl BackgroundRecovery {
    pub(crate) fn start(mut recovery: Recovery) -> Self {
        let (report, outcome) = mpsc::sync_channel(1);
        let (stop, stopped) = mpsc::channel();
        thread::spawn(move || {
            loop {
                let pause = match recovery.attempt() {
                    Attempted::Connected(generation) => break drop(report.send(Ok(generation))),
                    Attempted::GivenUp(error) => break drop(report.send(Err(error))),
                    Attempted::Retry(pause) => pause,
                };
                if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        });
        Self { outcome, _stop: stop }
    }

    /// Returns the final outcome, or `None` before it is known; an error without a value if the thread has
    /// panicked.
    pub(crate) fn outcome(&self) -> Option<Result<u64, Option<Error>>> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome.map_err(Some)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(None)),
        }
    }
}

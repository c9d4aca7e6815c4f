//! The phase of a connection and its start.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// Phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The TLS handshake is not complete.
    Handshake,
    /// No byte of the next request has arrived.
    Idle,
    /// The headers of a request are arriving.
    Headers,
    /// A request is being served: from the end of its headers until its response is complete.
    Serving,
    /// The last bytes of a response are being sent.
    Sending,
}

impl Phase {
    /// Whether the connection waits for a complete request, so that it can be closed without a loss.
    pub fn is_waiting(self) -> bool {
        matches!(self, Self::Handshake | Self::Idle | Self::Headers)
    }
}

/// The phase of a connection and its start, shared by the parts that see it change.
#[derive(Debug, Clone)]
pub struct Activity(Arc<Mutex<(Phase, Instant)>>);

impl Activity {
    /// A new connection in its first phase.
    pub fn new(phase: Phase) -> Self {
        Self(Arc::new(Mutex::new((phase, Instant::now()))))
    }

    /// Returns the phase and its start.
    pub fn get(&self) -> (Phase, Instant) {
        *self.lock()
    }

    /// The TLS handshake is complete.
    pub fn encrypted(&self) {
        *self.lock() = (Phase::Idle, Instant::now());
    }

    /// Bytes have arrived.
    pub fn received(&self) {
        let mut activity = self.lock();
        if activity.0 == Phase::Idle {
            *activity = (Phase::Headers, Instant::now());
        }
    }

    /// All written bytes have been passed to the system.
    pub fn flushed(&self) {
        let mut activity = self.lock();
        if activity.0 == Phase::Sending {
            *activity = (Phase::Idle, Instant::now());
        }
    }

    /// The headers of a request have arrived. It is served until the returned guard is dropped.
    pub fn serve(&self) -> Serving {
        *self.lock() = (Phase::Serving, Instant::now());
        Serving(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, (Phase, Instant)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is being served.
#[derive(Debug)]
pub struct Serving(Activity);

impl Drop for Serving {
    fn drop(&mut self) {
        *self.0.lock() = (Phase::Sending, Instant::now());
    }
}

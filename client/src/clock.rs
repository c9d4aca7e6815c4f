//! The source of time of a client, so that a caller can supply another one.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

/// A monotonic clock and a way to wait.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Instant;

    /// Blocks the calling thread for `duration`.
    fn sleep(&self, duration: Duration);
}

/// The clock of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    #[expect(clippy::disallowed_methods, reason = "waiting is what the caller asked for")]
    fn sleep(&self, duration: Duration) {
        thread::sleep(duration);
    }
}

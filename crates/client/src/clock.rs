//! The time source of a client, replaceable by the caller.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

/// A monotonic clock, and a function that waits.
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

    #[expect(clippy::disallowed_methods, reason = "the caller requests the wait")]
    fn sleep(&self, duration: Duration) {
        thread::sleep(duration);
    }
}

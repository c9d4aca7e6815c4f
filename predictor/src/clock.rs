//! The only place where the predictor reads the wall clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A clock of milliseconds since 1970 that never goes back. It reads the wall clock once and advances by a
/// monotonic clock.
#[derive(Debug, Clone)]
pub struct Clock(Kind);

#[derive(Debug, Clone)]
enum Kind {
    System { started_unix_ms: i64, started: Instant },
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// The clock of this machine.
    #[expect(clippy::disallowed_methods, reason = "this is where the wall clock enters the process")]
    pub fn system() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(Kind::System { started_unix_ms: millis(since_1970), started: Instant::now() })
    }

    /// Returns a clock that only changes through the returned handle.
    pub fn manual() -> (Self, Arc<AtomicI64>) {
        let handle = Arc::new(AtomicI64::new(0));
        (Self(Kind::Manual(handle.clone())), handle)
    }

    /// The current time, in milliseconds since 1970.
    pub fn now_unix_ms(&self) -> i64 {
        match &self.0 {
            Kind::System { started_unix_ms, started } => {
                started_unix_ms.saturating_add(millis(started.elapsed()))
            }
            Kind::Manual(now) => now.load(Ordering::SeqCst),
        }
    }
}

fn millis(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

//! The clock of the predictor, and the only place where it reads the wall clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The monotonic clock that also counts the time in which the machine is suspended. [`std::time::Instant`] does
/// not count that time on Linux, so a lease would seem valid after it has expired for all other machines.
#[cfg(target_os = "linux")]
const MONOTONIC: ClockId = ClockId::Boottime;
/// The monotonic clock.
#[cfg(not(target_os = "linux"))]
const MONOTONIC: ClockId = ClockId::Monotonic;

/// A clock of milliseconds since 1970 that never goes back. It reads the wall clock once and advances by a
/// monotonic clock, which also counts the time in which the machine is suspended.
///
/// A hypervisor that pauses a virtual machine stops this clock.
#[derive(Debug, Clone)]
pub struct Clock(Kind);

#[derive(Debug, Clone)]
enum Kind {
    System { started_unix_ms: i64, started_ms: i64 },
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// The clock of this machine.
    #[expect(clippy::disallowed_methods, reason = "this is where the wall clock enters the process")]
    pub fn system() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started_unix_ms = i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX);
        Self(Kind::System { started_unix_ms, started_ms: monotonic_ms() })
    }

    /// Returns a clock that only changes through the returned handle.
    pub fn manual() -> (Self, Arc<AtomicI64>) {
        let handle = Arc::new(AtomicI64::new(0));
        (Self(Kind::Manual(handle.clone())), handle)
    }

    /// The current time, in milliseconds since 1970.
    pub fn now_unix_ms(&self) -> i64 {
        match &self.0 {
            Kind::System { started_unix_ms, started_ms } => {
                started_unix_ms.saturating_add(monotonic_ms().saturating_sub(*started_ms))
            }
            Kind::Manual(now) => now.load(Ordering::SeqCst),
        }
    }
}

fn monotonic_ms() -> i64 {
    let now = clock_gettime(MONOTONIC);
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}

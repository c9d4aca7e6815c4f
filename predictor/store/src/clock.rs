//! The clocks of the predictor, and the only place where it reads them.

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

/// The wall clock and the steady clock. Each reading reads the clock of the machine, so a correction of the wall clock
/// takes effect at once.
///
/// - The wall clock counts milliseconds since 1970. An operator or NTP can set it in both directions. Stored times and
///   the expiry of tokens use it.
/// - The steady clock counts milliseconds from an arbitrary origin, also while the machine is suspended. It never goes back and
///   never jumps. Leases and all other durations use it. It stops while a hypervisor pauses a virtual machine.
#[derive(Debug, Clone)]
pub struct Clock(Kind);

#[derive(Debug, Clone)]
enum Kind {
    System,
    Manual(Arc<ManualClock>),
}

/// The time of a manual clock.
#[derive(Debug, Default)]
pub struct ManualClock {
    steady_ms: AtomicI64,
    correction_ms: AtomicI64,
}

impl ManualClock {
    /// Advances both clocks.
    pub fn advance(&self, ms: i64) {
        self.steady_ms.fetch_add(ms, Ordering::SeqCst);
    }

    /// Sets the wall clock forward, or back if `ms` is negative. The steady clock does not change.
    pub fn correct(&self, ms: i64) {
        self.correction_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

/// A reading of both clocks at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The wall clock, in milliseconds since 1970.
    pub unix_ms: i64,
    /// The steady clock, in milliseconds.
    pub steady_ms: i64,
}

impl Now {
    /// The time of the wall clock at a time of the steady clock, as if the wall clock had always been as it is now.
    pub fn unix_ms_at(self, steady_ms: i64) -> i64 {
        self.unix_ms.saturating_add(steady_ms.saturating_sub(self.steady_ms))
    }

    /// The time of the steady clock at a time of the wall clock. A time in the future counts as now: the wall clock was set
    /// back.
    pub fn steady_ms_at(self, unix_ms: i64) -> i64 {
        self.steady_ms.saturating_sub(self.unix_ms.saturating_sub(unix_ms).max(0))
    }
}

impl Clock {
    /// The clocks of this machine.
    pub fn system() -> Self {
        Self(Kind::System)
    }

    /// Returns clocks that only change through the returned handle. Both begin at `unix_ms`.
    pub fn manual(unix_ms: i64) -> (Self, Arc<ManualClock>) {
        let handle = Arc::new(ManualClock { steady_ms: unix_ms.into(), ..ManualClock::default() });
        (Self(Kind::Manual(handle.clone())), handle)
    }

    /// The current time of the wall clock, in milliseconds since 1970.
    #[expect(clippy::disallowed_methods, reason = "this is where the wall clock enters the process")]
    pub fn now_unix_ms(&self) -> i64 {
        match &self.0 {
            Kind::System => {
                let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX)
            }
            Kind::Manual(manual) => {
                self.steady_ms().saturating_add(manual.correction_ms.load(Ordering::SeqCst))
            }
        }
    }

    /// The current time of the steady clock, in milliseconds.
    pub fn steady_ms(&self) -> i64 {
        match &self.0 {
            Kind::System => {
                let now = clock_gettime(MONOTONIC);
                now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
            }
            Kind::Manual(manual) => manual.steady_ms.load(Ordering::SeqCst),
        }
    }

    /// The current time of both clocks.
    pub fn now(&self) -> Now {
        Now { unix_ms: self.now_unix_ms(), steady_ms: self.steady_ms() }
    }
}

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

/// Largest difference between two readings of the distance of the clocks without a correction, in milliseconds.
const ROUNDING_MS: u64 = 2;
/// Maximum number of attempts to read both clocks within a millisecond.
const READS_MAX: u32 = 8;

/// The wall clock and the steady clock. Each reading reads the clocks of the machine, so a correction of the wall clock
/// takes effect at once; a correction of a millisecond or two may not.
///
/// - The wall clock counts milliseconds since 1970. An operator or NTP can set it in both directions. Stored times and
///   the expiry of tokens use it.
/// - The steady clock counts milliseconds from an arbitrary origin, also while the machine is suspended. It never goes back and
///   never jumps. Leases and all other durations use it. It stops while a hypervisor pauses a virtual machine.
#[derive(Debug, Clone)]
pub struct Clock(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// The wall clock minus the steady clock, in milliseconds.
    System(Arc<AtomicI64>),
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
        Self(Kind::System(Arc::default()))
    }

    /// Returns clocks that only change through the returned handle. Both begin at `unix_ms`.
    pub fn manual(unix_ms: i64) -> (Self, Arc<ManualClock>) {
        let handle = Arc::new(ManualClock { steady_ms: unix_ms.into(), ..ManualClock::default() });
        (Self(Kind::Manual(handle.clone())), handle)
    }

    /// The current time of the wall clock, in milliseconds since 1970.
    pub fn now_unix_ms(&self) -> i64 {
        self.now().unix_ms
    }

    /// The current time of the steady clock, in milliseconds.
    pub fn steady_ms(&self) -> i64 {
        match &self.0 {
            Kind::System(_) => monotonic_ms(),
            Kind::Manual(manual) => manual.steady_ms.load(Ordering::SeqCst),
        }
    }

    /// The current time of both clocks. Their distance only changes with a correction of the wall clock, so that the same moment
    /// always has the same time.
    pub fn now(&self) -> Now {
        match &self.0 {
            Kind::System(known) => {
                let (steady_ms, unix_ms) = both_ms();
                let distance_ms = unix_ms.saturating_sub(steady_ms);
                let known_ms = known.load(Ordering::Relaxed);
                if distance_ms.abs_diff(known_ms) <= ROUNDING_MS {
                    return Now { unix_ms: steady_ms.saturating_add(known_ms), steady_ms };
                }
                known.store(distance_ms, Ordering::Relaxed);
                Now { unix_ms, steady_ms }
            }
            Kind::Manual(manual) => {
                let steady_ms = manual.steady_ms.load(Ordering::SeqCst);
                let correction_ms = manual.correction_ms.load(Ordering::SeqCst);
                Now { unix_ms: steady_ms.saturating_add(correction_ms), steady_ms }
            }
        }
    }
}

fn monotonic_ms() -> i64 {
    let now = clock_gettime(MONOTONIC);
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}

/// Reads the steady clock and the wall clock, as close to each other as possible.
#[expect(clippy::disallowed_methods, reason = "this is where the wall clock enters the process")]
fn both_ms() -> (i64, i64) {
    let mut steady_ms = monotonic_ms();
    let mut since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    // The system may stop the thread in between.
    for _ in 0..READS_MAX {
        let after_ms = monotonic_ms();
        if after_ms.saturating_sub(steady_ms) <= 1 {
            break;
        }
        steady_ms = after_ms;
        since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    }
    (steady_ms, i64::try_from(since_1970.unwrap_or_default().as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two clocks are rounded and read one after the other.
    #[test]
    fn a_moment_always_has_the_same_time() {
        let clock = Clock::system();
        let first = clock.now();
        for _ in 0..100_000 {
            let now = clock.now();
            assert_eq!(now.unix_ms_at(first.steady_ms), first.unix_ms);
            assert_eq!(now.steady_ms_at(first.unix_ms), first.steady_ms);
        }
    }

    #[test]
    fn a_correction_takes_effect_at_once() {
        let (clock, manual) = Clock::manual(1_000);
        manual.correct(-600);
        manual.advance(10);
        let now = clock.now();
        assert_eq!((now.unix_ms, now.steady_ms), (410, 1_010));
        assert_eq!((now.unix_ms_at(1_000), now.steady_ms_at(400)), (400, 1_000));
        assert_eq!(now.steady_ms_at(1_000), 1_010, "a time in the future counts as now");
    }
}

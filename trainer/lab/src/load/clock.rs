//! The machine's monotonic clock, which all of its processes share.

use rustix::time::{ClockId, clock_gettime};

/// Seconds on the machine's monotonic clock, which all of its processes share: an [`Instant`](std::time::Instant) that can be handed on.
pub fn clock_s() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Reads a time on the clock of [`clock_s`].
///
/// # Errors
/// It is no finite number of seconds, or negative.
pub fn clock_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    seconds.ok_or_else(|| format!("{text:?}: must be a finite number of seconds, at least 0"))
}

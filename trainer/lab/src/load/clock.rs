//! The machine's monotonic clock, which all processes of the machine share.

use rustix::time::{ClockId, clock_gettime};

/// Returns the time on the machine's monotonic clock, in seconds. Unlike an [`Instant`](std::time::Instant),
/// it can be passed to other processes.
pub fn clock_s() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Parses a time on the clock of [`clock_s`], in seconds.
///
/// # Errors
/// Fails if the text is not a finite number of at least 0.
pub fn clock_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    seconds.ok_or_else(|| format!("{text:?}: must be a finite number of seconds, at least 0"))
}

//! The wall clock. All other code takes the time as an argument.

use std::time::SystemTime;

/// Returns the time in milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

//! Waiting for a condition: polls until a deadline that no healthy run reaches.

use std::time::{Duration, Instant};

/// Longer than any healthy test waits, on the slowest machine that builds this.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Polling interval.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Polls until `look` returns a value.
///
/// # Panics
/// The time limit [`PATIENCE`] has passed. The message names the condition.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "timeout waiting until {what}");
        pause();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "yields the processor while polling; no decision depends on it"
)]
fn pause() {
    std::thread::sleep(LOOK_EVERY);
}

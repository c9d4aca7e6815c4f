//! Waiting for a condition: polls until a deadline that no healthy run reaches.

use std::time::{Duration, Instant};

/// Longer than any healthy test waits, also on a machine with four times as much other load as processors.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// Shortest and longest time between two polls. A poll may be a request to a predictor or a script in a browser, so frequent polls
/// would take the processors from what the test waits for.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// Polls until `look` returns a value.
///
/// # Panics
/// The time limit [`PATIENCE`] has passed. The message names the condition.
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    until_or(what, String::new, look)
}

/// Polls until `look` returns a value.
///
/// # Panics
/// The time limit [`PATIENCE`] has passed. The message names the condition and the state at that moment.
pub fn until_or<T>(what: &str, state: impl Fn() -> String, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        let elapsed = started.elapsed();
        assert!(elapsed < PATIENCE, "timeout waiting until {what}\n{}", state());
        // A wait becomes longer by an eighth at most.
        pause((elapsed / 8).clamp(PAUSE.0, PAUSE.1));
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "yields the processor while polling; no decision depends on it"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

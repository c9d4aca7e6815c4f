//! Waiting for something to become true: looked at again and again until a deadline that no healthy run meets.

use std::time::{Duration, Instant};

/// Longer than any healthy test waits, on the slowest machine that builds this.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// From one look to the next.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Looks until there is something to return.
///
/// # Panics
/// After [`PATIENCE`], saying what never happened.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "never happened: {what}");
        pause();
    }
}

#[expect(clippy::disallowed_methods, reason = "leaves the processor to what is waited for; decides nothing")]
fn pause() {
    std::thread::sleep(LOOK_EVERY);
}

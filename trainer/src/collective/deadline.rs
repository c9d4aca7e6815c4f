//! A time limit for calls that cannot be interrupted.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// Calls a function if it is not dropped in time.
#[derive(Debug)]
pub struct Deadline {
    /// Only its drop matters: it wakes the thread.
    _passed: Sender<()>,
}

impl Deadline {
    /// Starts the time. `missed` is called on another thread.
    pub fn start(within: Duration, missed: impl FnOnce() + Send + 'static) -> Self {
        let (passed, waiting) = mpsc::channel::<()>();
        thread::spawn(move || {
            if waiting.recv_timeout(within) == Err(RecvTimeoutError::Timeout) {
                missed();
            }
        });
        Self { _passed: passed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missed_deadline_calls_the_function() {
        let (called, calls) = mpsc::channel();
        drop(Deadline::start(Duration::from_secs(3600), {
            let called = called.clone();
            move || called.send("met").unwrap()
        }));
        let _missed = Deadline::start(Duration::from_millis(1), move || called.send("missed").unwrap());
        // The channel ends when both threads have ended.
        assert_eq!(calls.iter().collect::<Vec<_>>(), ["missed"]);
    }
}

//! A limit for log lines of a GPU, whose state may change in every sample.

use std::time::{Duration, Instant};

/// Length of a window.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of lines per window.
const LINES_MAX: u32 = 10;

/// Number of lines in the current window.
#[derive(Debug, Default)]
pub(super) struct LogLimit {
    window: Option<Instant>,
    lines: u32,
}

impl LogLimit {
    /// Counts a line, and returns whether it is within the limit.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        if self.window.is_none_or(|start| now.saturating_duration_since(start) >= WINDOW) {
            *self = Self { window: Some(now), lines: 0 };
        }
        let allows = self.lines < LINES_MAX;
        self.lines += u32::from(allows);
        allows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_per_window() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        let lines = |limit: &mut LogLimit, at| (0..100).filter(|_| limit.allows(at)).count();
        assert_eq!(lines(&mut limit, start), LINES_MAX as usize);
        assert_eq!(lines(&mut limit, start + WINDOW - Duration::from_secs(1)), 0);
        assert_eq!(lines(&mut limit, start + WINDOW), LINES_MAX as usize);
    }
}

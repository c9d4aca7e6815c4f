//! The `Retry-After` of rejected requests: the time in which the measured throughput can process the bytes in
//! flight and the bytes rejected before. So waits grow with the backlog, and clients do not all return at
//! once.

use std::time::{Duration, Instant};

/// Shortest interval over which throughput is measured. An overload is over after this time without a
/// rejection.
const MEASURING_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait, in seconds.
const MAX_WAIT_S: f64 = 60.0;

/// Throughput during an overload, and the bytes rejected.
#[derive(Debug)]
pub(super) struct RetryEstimator {
    /// Start of the current interval. `done` is the number of bytes processed in it.
    since: Instant,
    done: f64,
    /// Throughput in the latest interval with a rejection; `None` before the first.
    bytes_per_s: Option<f64>,
    /// Bytes rejected and not yet expected back, at the time of the latest rejection.
    rejected_bytes: f64,
    refused_at: Option<Instant>,
}

impl RetryEstimator {
    pub fn new(now: Instant) -> Self {
        Self { since: now, done: 0.0, bytes_per_s: None, rejected_bytes: 0.0, refused_at: None }
    }

    /// Counts a request of `bytes` bytes as processed.
    pub fn done(&mut self, bytes: usize, now: Instant) {
        self.done += bytes as f64;
        let lasted = now.saturating_duration_since(self.since);
        if lasted < MEASURING_INTERVAL {
            return;
        }
        // Without rejections, the throughput is the rate of arrivals and not the capacity.
        if self.refused_at.is_some_and(|refused| refused >= self.since) {
            self.bytes_per_s = Some(self.done / lasted.as_secs_f64());
        }
        (self.since, self.done) = (now, 0.0);
    }

    /// Rejects a request of `bytes` bytes while `bytes_in_flight` bytes are in flight. Returns the time after
    /// which the client should retry, 1 to 60 seconds.
    pub fn refuse(&mut self, bytes: usize, bytes_in_flight: usize, now: Instant) -> u64 {
        let quiet = self.refused_at.map(|refused| now.saturating_duration_since(refused));
        match quiet.filter(|quiet| *quiet <= MEASURING_INTERVAL) {
            Some(quiet) => self.rejected_bytes -= self.bytes_per_s.unwrap_or(0.0) * quiet.as_secs_f64(),
            // An overload begins: start a new interval.
            None => (self.since, self.done, self.rejected_bytes) = (now, 0.0, 0.0),
        }
        self.refused_at = Some(now);
        self.rejected_bytes = self.rejected_bytes.max(0.0) + bytes as f64;
        let Some(bytes_per_s) = self.bytes_per_s.filter(|rate| *rate > 0.0) else { return 1 };
        // Bounded, because clients that retry too early are counted again each time.
        self.rejected_bytes = self.rejected_bytes.min(MAX_WAIT_S * bytes_per_s);
        ((bytes_in_flight as f64 + self.rejected_bytes) / bytes_per_s).ceil().clamp(1.0, MAX_WAIT_S) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    #[test]
    fn retry_waits_grow_with_rejections_and_shrink_with_completions() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let mut pace = RetryEstimator::new(begin);
        assert_eq!(pace.refuse(MB, 64 * MB, at(0)), 1, "the throughput is unknown");
        // The throughput is 20 MB/s; arrivals are twice that.
        for tick in 1..=25 {
            pace.refuse(MB, 64 * MB, at(tick * 50));
            pace.done(MB, at(tick * 50));
        }
        let first = pace.refuse(MB, 64 * MB, at(1300));
        assert!((4..=6).contains(&first), "(64 + about 26 - a second's 20) MB at 20 MB/s: {first}");
        let waits: Vec<u64> = (0..100).map(|_| pace.refuse(MB, 64 * MB, at(1300))).collect();
        assert!(waits.is_sorted() && waits[99] >= first + 4, "{waits:?}");
        let later = pace.refuse(MB, 64 * MB, at(2200));
        assert!(later < waits[99], "one second of throughput was processed: {later}");
        for _ in 0..100_000 {
            assert!(pace.refuse(8 * MB, 64 * MB, at(2200)) <= 60);
        }
        // Long after the overload, no rejected request is still expected back.
        assert!(pace.refuse(MB, 64 * MB, at(60_000)) <= 5);
    }

    #[test]
    fn quiet_times_say_nothing_of_the_rate() {
        let begin = Instant::now();
        let mut pace = RetryEstimator::new(begin);
        for hour in 1..5 {
            pace.done(1000, begin + Duration::from_secs(3600 * hour));
        }
        assert_eq!(pace.bytes_per_s, None);
    }
}

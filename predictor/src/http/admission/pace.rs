//! When those who were sent away should come again: once what is under way, and what was sent away before, is done with at the
//! rate at which things are done. So their waits grow with how much waits, and they do not all come back at once.

use std::time::{Duration, Instant};

/// A rate is taken over at least so long, and an overload is over when nobody was refused for so long.
const STRETCH: Duration = Duration::from_secs(1);
/// The longest wait that is asked for, in seconds.
const LONGEST_S: f64 = 60.0;

/// How fast things are done while there is too much, and how much was sent away.
#[derive(Debug)]
pub(super) struct Pace {
    /// The stretch that is being measured: since when, and bytes done in it.
    since: Instant,
    done: f64,
    /// Of the latest stretch in which somebody was refused; `None` before the first.
    bytes_per_s: Option<f64>,
    /// Bytes sent away and not expected back yet, as of the latest refusal.
    away: f64,
    refused_at: Option<Instant>,
}

impl Pace {
    pub fn new(now: Instant) -> Self {
        Self { since: now, done: 0.0, bytes_per_s: None, away: 0.0, refused_at: None }
    }

    /// A request of so many bytes is done with.
    pub fn done(&mut self, bytes: usize, now: Instant) {
        self.done += bytes as f64;
        let lasted = now.saturating_duration_since(self.since);
        if lasted < STRETCH {
            return;
        }
        // Without refusals the rate says how much came in, and not how much could have.
        if self.refused_at.is_some_and(|refused| refused >= self.since) {
            self.bytes_per_s = Some(self.done / lasted.as_secs_f64());
        }
        (self.since, self.done) = (now, 0.0);
    }

    /// A request of so many bytes is sent away while others take up `bytes_taken`: returns after how many seconds it should
    /// come again, 1 to 60.
    pub fn refuse(&mut self, bytes: usize, bytes_taken: usize, now: Instant) -> u64 {
        let quiet = self.refused_at.map(|refused| now.saturating_duration_since(refused));
        match quiet.filter(|quiet| *quiet <= STRETCH) {
            Some(quiet) => self.away -= self.bytes_per_s.unwrap_or(0.0) * quiet.as_secs_f64(),
            // An overload begins, and with it a stretch.
            None => (self.since, self.done, self.away) = (now, 0.0, 0.0),
        }
        self.refused_at = Some(now);
        self.away = self.away.max(0.0) + bytes as f64;
        let Some(bytes_per_s) = self.bytes_per_s.filter(|rate| *rate > 0.0) else { return 1 };
        // Those who come again too soon are not counted without end.
        self.away = self.away.min(LONGEST_S * bytes_per_s);
        ((bytes_taken as f64 + self.away) / bytes_per_s).ceil().clamp(1.0, LONGEST_S) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    #[test]
    fn waits_grow_with_what_was_sent_away_and_shrink_as_it_is_done() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let mut pace = Pace::new(begin);
        assert_eq!(pace.refuse(MB, 64 * MB, at(0)), 1, "nothing is known of the rate");
        // 20 MB a second, and twice as much comes.
        for tick in 1..=25 {
            pace.refuse(MB, 64 * MB, at(tick * 50));
            pace.done(MB, at(tick * 50));
        }
        let first = pace.refuse(MB, 64 * MB, at(1300));
        assert!((4..=6).contains(&first), "(64 + about 26 - a second's 20) MB at 20 MB/s: {first}");
        let waits: Vec<u64> = (0..100).map(|_| pace.refuse(MB, 64 * MB, at(1300))).collect();
        assert!(waits.is_sorted() && waits[99] >= first + 4, "{waits:?}");
        let later = pace.refuse(MB, 64 * MB, at(2200));
        assert!(later < waits[99], "a second's worth was done: {later}");
        for _ in 0..100_000 {
            assert!(pace.refuse(8 * MB, 64 * MB, at(2200)) <= 60);
        }
        // Long after, nobody is away any more.
        assert!(pace.refuse(MB, 64 * MB, at(60_000)) <= 5);
    }

    #[test]
    fn quiet_times_say_nothing_of_the_rate() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        for hour in 1..5 {
            pace.done(1000, begin + Duration::from_secs(3600 * hour));
        }
        assert_eq!(pace.bytes_per_s, None);
    }
}

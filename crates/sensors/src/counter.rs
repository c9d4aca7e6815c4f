//! Differences of monotonic counters.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::MissingReason;

/// Minimum window of readings from the CPU times of `/proc/stat`, however short the reader's own window is.
/// These times count in ticks of 10 ms: over 30 ms a difference would be mostly rounding, over this window it
/// is within 10 % of a core.
pub const TICK_LOOKBACK: Duration = Duration::from_millis(100);

/// Minimum time between stored snapshots. With many short windows the look-back is longer than
/// [`TICK_LOOKBACK`] by at most this much.
const SNAPSHOT_SPACING: Duration = Duration::from_millis(12);

/// A kernel counter that only increases during the lifetime of its process or device.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    last: Option<u64>,
}

impl Counter {
    /// Stores `value` and returns the increase since the previous value.
    pub(crate) fn advance(&mut self, value: u64) -> Result<u64, MissingReason> {
        let last = self.last.replace(value).ok_or(MissingReason::First)?;
        value.checked_sub(last).ok_or(MissingReason::CounterDecreased)
    }

    /// Discards the last value, so that the next difference does not span a gap.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    /// Like [`Self::advance`], for a value that may be missing.
    pub(crate) fn advance_or_reset(
        &mut self,
        value: Result<u64, MissingReason>,
    ) -> Result<u64, MissingReason> {
        match value {
            Ok(value) => self.advance(value),
            Err(gap) => {
                self.forget();
                Err(gap)
            }
        }
    }
}

/// Window since a reader's last reading.
#[derive(Debug, Default)]
pub(crate) struct Window {
    last: Option<Instant>,
}

impl Window {
    /// Starts the next window at `now` and returns the length of the previous one, in seconds.
    pub(crate) fn advance(&mut self, now: Instant) -> Result<f64, MissingReason> {
        let last = self.last.replace(now).ok_or(MissingReason::First)?;
        let window = now.saturating_duration_since(last);
        if window.is_zero() { Err(MissingReason::EmptyWindow) } else { Ok(window.as_secs_f64()) }
    }
}

/// Returns a difference per second of the window.
pub(crate) fn rate(
    difference: Result<u64, MissingReason>,
    window_s: &Result<f64, MissingReason>,
) -> Result<f64, MissingReason> {
    Ok(difference? as f64 / window_s.clone()?)
}

/// Past values of a coarse counter, for differences over at least its own interval.
#[derive(Debug)]
pub(crate) struct Lookback<T> {
    snapshots: VecDeque<(Instant, T)>,
}

impl<T> Default for Lookback<T> {
    fn default() -> Self {
        Self { snapshots: VecDeque::new() }
    }
}

impl<T: Copy> Lookback<T> {
    /// Stores `value` and returns the newest earlier value that is at least [`TICK_LOOKBACK`] old, with its age in seconds.
    pub(crate) fn advance(&mut self, now: Instant, value: T) -> Result<(f64, T), MissingReason> {
        self.advance_over(now, value, TICK_LOOKBACK)
    }

    /// Like [`Self::advance`], for a value that is at least `least` old.
    pub(crate) fn advance_over(
        &mut self,
        now: Instant,
        value: T,
        least: Duration,
    ) -> Result<(f64, T), MissingReason> {
        let age = |at: Instant| now.saturating_duration_since(at);
        // If the second snapshot is old enough, the first is never needed again.
        while self.snapshots.get(1).is_some_and(|(at, _)| age(*at) >= least) {
            self.snapshots.pop_front();
        }
        let base = self.snapshots.front().copied().filter(|(at, _)| age(*at) >= least);
        if self.snapshots.back().is_none_or(|(at, _)| age(*at) >= SNAPSHOT_SPACING) {
            self.snapshots.push_back((now, value));
        }
        base.map(|(at, value)| (age(at).as_secs_f64(), value)).ok_or(MissingReason::First)
    }

    /// Discards all snapshots after a missing value.
    pub(crate) fn forget(&mut self) {
        self.snapshots.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Maximum number of snapshots needed for the look-back at this spacing.
    const SNAPSHOTS_MAX: usize = 10;

    proptest! {
        #[test]
        fn differences_add_up_to_the_whole_rise(steps in prop::collection::vec(0_u64..1 << 40, 1..50), start: u32) {
            let mut counter = Counter::default();
            let mut value = u64::from(start);
            prop_assert_eq!(counter.advance(value), Err(MissingReason::First));
            let mut sum = 0;
            for step in &steps {
                value += step;
                sum += counter.advance(value).unwrap();
            }
            prop_assert_eq!(sum, steps.iter().sum::<u64>());
        }

        #[test]
        fn a_counter_that_goes_back_gives_no_difference(high in 1_u64.., fall in 1_u64.., rise: u32) {
            let low = high.saturating_sub(fall);
            let mut counter = Counter::default();
            let _ = counter.advance(high);
            prop_assert_eq!(counter.advance(low), Err(MissingReason::CounterDecreased));
            let next = low.saturating_add(u64::from(rise));
            prop_assert_eq!(counter.advance(next), Ok(next - low));
        }

        #[test]
        fn a_look_back_is_long_enough_and_barely_longer_than_needed(
            steps_ms in prop::collection::vec(0_u64..400, 2..200),
        ) {
            let mut lookback = Lookback::default();
            let start = Instant::now();
            let mut at_ms = 0;
            let mut widest_ms: u64 = 0;
            for step in steps_ms {
                at_ms += step;
                widest_ms = widest_ms.max(step);
                let now = start + Duration::from_millis(at_ms);
                match lookback.advance(now, at_ms) {
                    Ok((age_s, then_ms)) => {
                        prop_assert!((age_s * 1e3 - (at_ms - then_ms) as f64).abs() < 1e-6);
                        prop_assert!(at_ms - then_ms >= 100);
                        prop_assert!(at_ms - then_ms <= 100 + 12 + widest_ms);
                    }
                    Err(gap) => {
                        prop_assert_eq!(gap, MissingReason::First);
                        prop_assert!(at_ms < 100 + 400);
                    }
                }
                prop_assert!(lookback.snapshots.len() <= SNAPSHOTS_MAX, "{}", lookback.snapshots.len());
            }
        }
    }

    #[test]
    fn a_value_that_was_missing_breaks_the_window() {
        let mut counter = Counter::default();
        let _ = counter.advance_or_reset(Ok(5));
        assert_eq!(
            counter.advance_or_reset(Err(MissingReason::CounterDecreased)),
            Err(MissingReason::CounterDecreased)
        );
        assert_eq!(counter.advance_or_reset(Ok(9)), Err(MissingReason::First));
        assert_eq!(counter.advance_or_reset(Ok(12)), Ok(3));
    }
}

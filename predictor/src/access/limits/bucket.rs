//! Token buckets, which limit rates. The caller passes the time.

use std::time::{Duration, Instant};

/// A bucket that fills at a rate and holds what one second adds, at least 1. It is full at first.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bucket(Option<Level>);

#[derive(Debug, Clone, Copy)]
struct Level {
    at: Instant,
    /// Negative after a cost above the capacity, until the rate has made up for it.
    left: f64,
}

/// The contents of a full bucket.
fn capacity(per_s: f64) -> f64 {
    per_s.max(1.0)
}

impl Bucket {
    /// Takes a cost. A cost above the capacity needs a full bucket, and the bucket then owes the rest. So no request waits
    /// forever, and the rate holds on average.
    ///
    /// # Errors
    /// The time until the bucket has enough; nothing is taken.
    pub fn take(&mut self, cost: f64, per_s: f64, now: Instant) -> Result<(), Duration> {
        let left = self.left(per_s, now);
        let lacks = cost.min(capacity(per_s)) - left;
        // Sums of floating-point numbers may miss a full bucket by a rounding error.
        if lacks > 1e-9 * capacity(per_s) {
            return Err(Duration::try_from_secs_f64(lacks / per_s).unwrap_or(Duration::MAX));
        }
        self.charge(cost, per_s, now);
        Ok(())
    }

    /// Takes a cost, also if the bucket then owes it.
    pub fn charge(&mut self, cost: f64, per_s: f64, now: Instant) {
        let left = self.left(per_s, now) - cost;
        // Threads may pass their times in another order.
        let at = self.0.map_or(now, |level| level.at.max(now));
        self.0 = Some(Level { at, left });
    }

    fn left(&self, per_s: f64, now: Instant) -> f64 {
        let Some(level) = self.0 else { return capacity(per_s) };
        let passed_s = now.saturating_duration_since(level.at).as_secs_f64();
        per_s.mul_add(passed_s, level.left).min(capacity(per_s))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Costs with the milliseconds before each.
    fn requests() -> impl Strategy<Value = Vec<(u64, f64)>> {
        let cost = prop_oneof![Just(1.0), 0.0..1e6];
        prop::collection::vec((prop_oneof![Just(0), 0..3_000_u64], cost), 1..60)
    }

    proptest! {
        /// In any span of time, a bucket gives at most the rate times the span and one second's worth, beyond which only the
        /// last cost may go.
        #[test]
        fn the_rate_holds(per_s in prop_oneof![0.001..1.0, 1.0..1e6], requests in requests()) {
            let (begin, mut bucket, mut at_ms) = (Instant::now(), Bucket::default(), 0);
            let mut given: Vec<(u64, f64)> = Vec::new();
            for (pause_ms, cost) in requests {
                at_ms += pause_ms;
                let now = begin + Duration::from_millis(at_ms);
                match bucket.take(cost, per_s, now) {
                    Ok(()) => given.push((at_ms, cost)),
                    Err(wait) => {
                        // A refusal takes nothing, and the wait is exactly enough.
                        let again = now + wait;
                        let mut later = bucket;
                        prop_assert!(later.take(cost, per_s, again).is_ok(), "{wait:?}");
                        prop_assert!(wait.as_secs_f64() <= (cost.min(capacity(per_s)) - bucket.left(per_s, now)) / per_s + 1e-6);
                    }
                }
            }
            for first in 0..given.len() {
                for last in first..given.len() {
                    let span_s = (given[last].0 - given[first].0) as f64 / 1e3;
                    let before: f64 = given[first..last].iter().map(|(_, cost)| cost).sum();
                    let end = given[last].1.min(capacity(per_s));
                    let most = per_s.mul_add(span_s, capacity(per_s));
                    prop_assert!(before + end <= most * (1.0 + 1e-6), "{} in {span_s} s", before + end);
                }
            }
        }

        /// A request that is repeated after the returned wait is accepted: even a cost above the capacity.
        #[test]
        fn no_cost_waits_forever(per_s in 0.001..1e4, costs in prop::collection::vec(0.0..1e6, 1..20)) {
            let (mut now, mut bucket) = (Instant::now(), Bucket::default());
            for cost in costs {
                if let Err(wait) = bucket.take(cost, per_s, now) {
                    now += wait;
                    prop_assert!(bucket.take(cost, per_s, now).is_ok());
                }
            }
        }
    }

    #[test]
    fn a_slow_rate_gives_one_at_once() {
        let (now, mut bucket) = (Instant::now(), Bucket::default());
        assert_eq!(bucket.take(1.0, 0.5, now), Ok(()));
        assert_eq!(bucket.take(1.0, 0.5, now), Err(Duration::from_secs(2)));
        assert_eq!(bucket.take(1.0, 0.5, now + Duration::from_secs(1)), Err(Duration::from_secs(1)));
        assert_eq!(bucket.take(1.0, 0.5, now + Duration::from_secs(2)), Ok(()));
        assert_eq!(bucket.take(1.0, 0.5, now), Err(Duration::from_secs(2)), "an earlier time adds nothing");
        assert_eq!(bucket.take(2.0, 3.0, now + Duration::from_secs(3)), Ok(()), "a new rate works at once");
    }
}

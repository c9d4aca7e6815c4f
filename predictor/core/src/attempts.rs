//! Attempts of a run, and the places of its iterations in the history of their job.
//!
//! A run may return to an earlier iteration: it starts again from a checkpoint, or an iteration is planned again because a
//! worker departed. So one iteration may be carried out several times. Inside the predictor, each of these times has a
//! *position*: a number that only grows over the life of a job. The first time, an iteration has its own number as its
//! position. When a run returns to an iteration, this iteration gets the first position without an allocation, and the later
//! iterations get the positions after it. Clients know iterations and attempts only.

use std::ops::Range;
use std::sync::Arc;

/// See [`Attempts::points`].
const POINTS_FACTOR_MAX: u64 = 8;

/// Iterations that follow one another without a return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The attempt that they belong to, from 1. It is the one before if an iteration was planned again without a new start of
    /// the run.
    pub attempt: u64,
    /// The first iteration.
    pub first_iteration: u64,
    /// Its position.
    pub first_position: u64,
}

impl Segment {
    const FIRST: Self = Self { attempt: 1, first_iteration: 0, first_position: 0 };

    fn position(&self, iteration: u64) -> u64 {
        self.first_position.saturating_add(iteration.saturating_sub(self.first_iteration))
    }
}

/// An iteration of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Iteration {
    /// The attempt, from 1.
    pub attempt: u64,
    /// The iteration, as clients count.
    pub iteration: u64,
}

/// All attempts of a job. A copy shares its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempts {
    /// In order of positions; the first has position 0.
    segments: Arc<[Segment]>,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { segments: Arc::new([Segment::FIRST]) }
    }
}

impl Attempts {
    /// Returns the attempts with these stored segments, in order of positions. The first segment of a job is not stored.
    pub fn restore(stored: impl IntoIterator<Item = Segment>) -> Self {
        Self { segments: std::iter::once(Segment::FIRST).chain(stored).collect() }
    }

    /// Returns the current attempt.
    pub fn current(&self) -> u64 {
        self.last().attempt
    }

    /// Returns the segment that begins when the run returns to an iteration, which gets this position: in the next attempt if
    /// the run starts again.
    pub fn next(&self, iteration: u64, position: u64, starts_again: bool) -> Segment {
        let attempt = self.current().saturating_add(u64::from(starts_again));
        Segment { attempt, first_iteration: iteration, first_position: position }
    }

    /// Adds a segment.
    pub fn push(&mut self, segment: Segment) {
        self.segments = self.segments.iter().copied().chain([segment]).collect();
    }

    /// Returns the position of an iteration the latest time that it was carried out, or will be.
    pub fn position(&self, iteration: u64) -> u64 {
        let latest = self.segments.iter().rev().find(|segment| segment.first_iteration <= iteration);
        latest.unwrap_or(&Segment::FIRST).position(iteration)
    }

    /// Returns the iteration at a position.
    pub fn at(&self, position: u64) -> Iteration {
        let segment = self.segment(position);
        let iteration = segment.first_iteration.saturating_add(position - segment.first_position);
        Iteration { attempt: segment.attempt, iteration }
    }

    /// Returns the first position after the latest return up to a position.
    pub fn first(&self, position: u64) -> u64 {
        self.segment(position).first_position
    }

    /// Returns the first position of the newest segment. Iterations before it that are not complete never will be.
    pub fn newest(&self) -> u64 {
        self.last().first_position
    }

    /// Whether an iteration at this position was carried out, or will be, again.
    pub fn is_superseded(&self, position: u64) -> bool {
        self.position(self.at(position).iteration) != position
    }

    /// Returns the positions of a range of iterations the latest time that each was carried out, as ranges in order of
    /// iterations.
    pub fn positions(&self, iterations: Range<u64>) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        let mut end = iterations.end;
        for segment in self.segments.iter().rev() {
            let first = segment.first_iteration.max(iterations.start);
            if first < end {
                ranges.push(segment.position(first)..segment.position(end));
                end = first;
            }
        }
        ranges.reverse();
        ranges
    }

    /// Returns how many evenly sampled positions of a range have about `points` that are not superseded; at most
    /// eight times as many.
    pub fn points(&self, positions: &Range<u64>, points: u64) -> u64 {
        let all = positions.end.saturating_sub(positions.start);
        let kept = self.positions(0..u64::MAX).into_iter();
        let kept =
            kept.map(|kept| kept.end.min(positions.end).saturating_sub(kept.start.max(positions.start)));
        let wanted = (u128::from(points) * u128::from(all)).div_ceil(u128::from(kept.sum::<u64>().max(1)));
        u64::try_from(wanted).unwrap_or(u64::MAX).clamp(points, points.saturating_mul(POINTS_FACTOR_MAX))
    }

    /// Drops segments that no position from this one on needs.
    pub fn forget_before(&mut self, position: u64) {
        let after = self.segments.partition_point(|segment| segment.first_position <= position);
        if after > 2 {
            let kept = self.segments.iter().skip(after - 1).copied();
            self.segments = std::iter::once(Segment::FIRST).chain(kept).collect();
        }
    }

    fn segment(&self, position: u64) -> &Segment {
        let after = self.segments.partition_point(|segment| segment.first_position <= position);
        after.checked_sub(1).and_then(|at| self.segments.get(at)).unwrap_or(&Segment::FIRST)
    }

    fn last(&self) -> &Segment {
        self.segments.last().unwrap_or(&Segment::FIRST)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A run that goes forward and returns, and the truth about it: the iteration of each position, and the latest position of
    /// each iteration.
    fn run(moves: Vec<(u64, u64, bool)>) -> (Attempts, Vec<Iteration>, BTreeMap<u64, u64>) {
        let (mut attempts, mut all, mut latest) = (Attempts::default(), Vec::new(), BTreeMap::new());
        let mut next = 0;
        for (forward, back, starts_again) in moves {
            for iteration in next..next + forward {
                latest.insert(iteration, all.len() as u64);
                all.push(Iteration { attempt: attempts.current(), iteration });
            }
            let begin = (next + forward).saturating_sub(back);
            if begin < next + forward {
                attempts.push(attempts.next(begin, all.len() as u64, starts_again));
                latest.retain(|iteration, _| *iteration < begin);
            }
            next = begin;
        }
        (attempts, all, latest)
    }

    proptest! {
        /// Compares with a list of all positions, over runs that return again and again.
        #[test]
        fn positions_and_iterations_are_those_of_the_run(
            moves in prop::collection::vec((1u64..40, 0u64..60, any::<bool>()), 1..12),
        ) {
            let (attempts, all, latest) = run(moves);
            for (position, iteration) in all.iter().enumerate() {
                let position = position as u64;
                prop_assert_eq!(attempts.at(position), *iteration);
                let is_latest = latest.get(&iteration.iteration) == Some(&position);
                prop_assert_eq!(attempts.is_superseded(position), !is_latest);
            }
            for (iteration, position) in &latest {
                prop_assert_eq!(attempts.position(*iteration), *position);
            }
            let next = latest.len() as u64;
            prop_assert_eq!(attempts.position(next), all.len() as u64);
            prop_assert_eq!(attempts.at(all.len() as u64), Iteration { attempt: attempts.current(), iteration: next });
            for (from, to) in [(0, next), (next / 3, next / 2), (5, 6), (7, 7), (0, next + 9)] {
                let walked: Vec<u64> = attempts.positions(from..to).into_iter().flatten().collect();
                let expected: Vec<u64> = (from..to).map(|iteration| attempts.position(iteration)).collect();
                prop_assert_eq!(walked, expected);
            }
        }

        /// The history from a position on reads the same after the earlier one was deleted.
        #[test]
        fn deleted_positions_do_not_matter(
            moves in prop::collection::vec((1u64..40, 0u64..60, any::<bool>()), 1..12),
            share in 0.0..1.0,
        ) {
            let (attempts, all, latest) = run(moves);
            let kept_from = (all.len() as f64 * share) as u64;
            let mut kept = attempts.clone();
            kept.forget_before(kept_from);
            for position in kept_from..all.len() as u64 {
                prop_assert_eq!(kept.at(position), attempts.at(position));
                prop_assert_eq!(kept.is_superseded(position), attempts.is_superseded(position));
            }
            for (iteration, position) in latest {
                let now = kept.position(iteration);
                prop_assert_eq!(now >= kept_from, position >= kept_from);
                prop_assert!(now < kept_from || now == position);
            }
        }
    }
}

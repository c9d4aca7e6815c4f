//! Samples of unequal cost, in their order: each worker takes the next stretch of them.

use std::collections::BTreeMap;

use super::quantum::{Infeasible, Problem};
use super::worker::Share;

/// Splits samples of the given costs (tokens, say; finite, >= 0) into contiguous ranges by rank and answers how many
/// samples each worker takes, such that the last finishes first: the exact optimum over all ways to cut them. A
/// worker's curve is in units of cost; floors and caps are in samples.
///
/// A search on the finish time, as in [`allocate`](super::allocate): at T the ends that the first i workers can reach
/// are a few ranges of positions, and T is long enough where the last worker can reach the end.
///
/// # Errors
/// [`Infeasible`] where the floors take more, or the caps hold less, than there are samples.
pub fn partition(shares: &[Share], costs: &[f64]) -> Result<Vec<u64>, Infeasible> {
    debug_assert!(costs.iter().all(|cost| cost.is_finite() && *cost >= 0.0));
    let problem = Problem::new(shares, costs.len() as u64, 1)?;
    let mut sums = vec![0.0];
    for (i, cost) in costs.iter().enumerate() {
        sums.push(sums[i] + cost);
    }
    let end = costs.len();
    let mut dearest = BTreeMap::new();
    for floor in problem.floors.iter().map(|floor| *floor as usize) {
        let windows = || (0..=end - floor).map(|begin| sums[begin + floor] - sums[begin]).fold(0.0, f64::max);
        dearest.entry(floor).or_insert_with(windows);
    }
    let stretch = |(i, share)| {
        let (floor, cap) = (problem.floors[i] as usize, problem.caps[i] as usize);
        Stretch { share, sums: &sums, floor, cap, dearest_floor: dearest[&floor] }
    };
    let stretches: Vec<Stretch<'_>> = shares.iter().enumerate().map(stretch).collect();
    // Positive floats order as their bits. `high` always reaches the end: by then any stretch is done.
    let longest = stretches.iter().map(|stretch| stretch.finish_s(0, end)).fold(0.0, f64::max);
    let (mut low, mut high) = (0.0f64.to_bits(), longest.to_bits());
    while low < high {
        let middle = low + (high - low) / 2;
        if reach(&stretches, end, f64::from_bits(middle)).is_some() {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let time_s = f64::from_bits(high);
    let reached = reach(&stretches, end, time_s).unwrap_or_default();
    Ok(cut(&stretches, &reached, end, time_s))
}

/// A worker, and what it may take of the samples in a row.
struct Stretch<'a> {
    share: &'a Share,
    /// Costs of the first so many samples.
    sums: &'a [f64],
    floor: usize,
    cap: usize,
    /// What as many samples as the floor cost at most, wherever they begin.
    dearest_floor: f64,
}

/// Positions that can be reached: ranges, both ends included, in rising order and apart.
type Reached = Vec<(usize, usize)>;

impl Stretch<'_> {
    /// When the samples from `begin` to `end` are done.
    fn finish_s(&self, begin: usize, end: usize) -> f64 {
        self.finish_cost_s(self.sums[end] - self.sums[begin])
    }

    fn finish_cost_s(&self, cost: f64) -> f64 {
        self.share.communication.finish_s(self.share.curve.time_of(cost))
    }

    /// The last end that is in time for a stretch from `begin`, where an empty one is.
    fn last_end(&self, begin: usize, time_s: f64) -> usize {
        let most = (self.sums.len() - 1).min(begin.saturating_add(self.cap));
        let more = &self.sums[begin..=most];
        let within = more.partition_point(|sum| self.finish_cost_s(sum - self.sums[begin]) <= time_s);
        begin + within.max(1) - 1
    }

    /// The ends that are in time from any of these beginnings.
    fn reach(&self, from: &Reached, time_s: f64) -> Reached {
        let mut ends = Reached::new();
        if self.finish_cost_s(0.0) > time_s {
            return ends;
        }
        let last_begin = (self.sums.len() - 1).checked_sub(self.floor);
        let every_floor_fits = self.floor == 0 || self.finish_cost_s(self.dearest_floor) <= time_s;
        for (first, last) in from {
            let Some(last) = last_begin.map(|limit| limit.min(*last)).filter(|last| first <= last) else {
                continue;
            };
            if every_floor_fits {
                push(&mut ends, (first + self.floor, self.last_end(last, time_s)));
                continue;
            }
            for begin in *first..=last {
                if self.finish_s(begin, begin + self.floor) <= time_s {
                    push(&mut ends, (begin + self.floor, self.last_end(begin, time_s)));
                }
            }
        }
        ends
    }
}

/// Adds a range that begins no earlier than those before.
fn push(ranges: &mut Reached, range: (usize, usize)) {
    match ranges.last_mut() {
        Some(last) if range.0 <= last.1 + 1 => last.1 = last.1.max(range.1),
        _ => ranges.push(range),
    }
}

/// What the first 0, 1, 2, .. workers can reach in time; `None` where all together do not reach the end.
fn reach(stretches: &[Stretch<'_>], end: usize, time_s: f64) -> Option<Vec<Reached>> {
    let mut reached = vec![vec![(0, 0)]];
    for stretch in stretches {
        let next = stretch.reach(reached.last()?, time_s);
        reached.push(next);
    }
    let at_end = reached.last()?.last().is_some_and(|(_, last)| *last == end);
    at_end.then_some(reached)
}

/// Cuts from the end: each worker takes as few as the ones before it leave.
fn cut(stretches: &[Stretch<'_>], reached: &[Reached], end: usize, time_s: f64) -> Vec<u64> {
    let mut end = end;
    let mut batches: Vec<u64> = Vec::with_capacity(stretches.len());
    for (stretch, reached) in stretches.iter().zip(reached).rev() {
        let fits = |begin: &usize| begin + stretch.floor <= end && stretch.last_end(*begin, time_s) >= end;
        let begins = reached.iter().rev().flat_map(|(first, last)| (*first..=*last).rev());
        // The first beginning that fits is near: the others are only passed to leave room for the floor.
        let begin = begins.skip_while(|begin| begin + stretch.floor > end).find(fits).unwrap_or(end);
        batches.push((end - begin) as u64);
        end = begin;
    }
    batches.reverse();
    batches
}

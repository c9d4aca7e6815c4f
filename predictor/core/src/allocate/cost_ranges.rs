//! Contiguous ranges of samples of different cost, in sample order, one range per worker.

use std::collections::BTreeMap;

use super::quantum::{Infeasible, Problem};
use super::worker::Share;

/// Splits samples into contiguous ranges by rank, so that the slowest worker finishes as early as possible.
///
/// `costs` is the cost of each sample, for example its number of tokens; costs are finite and not negative.
/// The result is the number of samples of each worker. It is the exact optimum over all ways to cut the
/// sequence. A worker's curve is in units of cost; floors and caps are in samples.
///
/// The function searches the finish time T, as [`allocate`](super::allocate) does. The positions at which the
/// first i workers can end by T form a few ranges. T is long enough if the last worker can reach the end of
/// the sequence.
///
/// # Errors
/// [`Infeasible`] if the floors add up to more, or the caps to less, than the number of samples.
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
        WorkerRange { share, sums: &sums, floor, cap, max_floor_cost: dearest[&floor] }
    };
    let stretches: Vec<WorkerRange<'_>> = shares.iter().enumerate().map(stretch).collect();
    // The bits of positive floats have the same order as their values. `high` always reaches the end: any
    // single range is finished by then.
    let longest = stretches.iter().map(|stretch| stretch.finish_s(0, end)).fold(0.0, f64::max);
    let (mut low, mut high) = (0.0f64.to_bits(), longest.to_bits());
    let cut_by = |time_s: f64| Some(cut(&stretches, &reach(&stretches, end, time_s)?, end, time_s));
    let mut best = cut_by(longest).unwrap_or_default();
    while low < high {
        let middle = low + (high - low) / 2;
        match cut_by(f64::from_bits(middle)) {
            Some(batches) => {
                // The ranges may finish earlier than allowed.
                high = finish_s(&stretches, &batches).to_bits().min(middle);
                best = batches;
            }
            None => low = middle + 1,
        }
    }
    Ok(best)
}

/// Returns the finish time of the slowest worker.
fn finish_s(stretches: &[WorkerRange<'_>], batches: &[u64]) -> f64 {
    let mut begin = 0;
    let mut slowest = 0.0f64;
    for (stretch, batch) in stretches.iter().zip(batches) {
        let end = begin + *batch as usize;
        slowest = slowest.max(stretch.finish_s(begin, end));
        begin = end;
    }
    slowest
}

/// A worker, with the data needed to extend its range of samples.
struct WorkerRange<'a> {
    share: &'a Share,
    /// Prefix sums of the costs: entry n is the cost of the first n samples.
    sums: &'a [f64],
    floor: usize,
    cap: usize,
    /// Maximum cost of `floor` consecutive samples.
    max_floor_cost: f64,
}

/// Reachable positions: disjoint ranges in ascending order, both ends included.
type Reached = Vec<(usize, usize)>;

impl WorkerRange<'_> {
    /// Returns the time at which the worker finishes the samples from `begin` to `end`.
    fn finish_s(&self, begin: usize, end: usize) -> f64 {
        self.finish_cost_s(self.sums[end] - self.sums[begin])
    }

    fn finish_cost_s(&self, cost: f64) -> f64 {
        self.share.communication.finish_s(self.share.curve.time_of(cost))
    }

    /// Returns the last end of a range from `begin` that finishes by `time_s`. An empty range must finish by
    /// then.
    fn last_end(&self, begin: usize, time_s: f64) -> usize {
        let most = (self.sums.len() - 1).min(begin.saturating_add(self.cap));
        let more = &self.sums[begin..=most];
        let within = more.partition_point(|sum| self.finish_cost_s(sum - self.sums[begin]) <= time_s);
        begin + within.max(1) - 1
    }

    /// Returns the ends of ranges that start at any of these positions and finish by `time_s`.
    fn reach(&self, from: &Reached, time_s: f64) -> Reached {
        let mut ends = Reached::new();
        if self.finish_cost_s(0.0) > time_s {
            return ends;
        }
        let last_begin = (self.sums.len() - 1).checked_sub(self.floor);
        let every_floor_fits = self.floor == 0 || self.finish_cost_s(self.max_floor_cost) <= time_s;
        for (first, last) in from {
            let Some(last) = last_begin.map(|limit| limit.min(*last)).filter(|last| first <= last) else {
                continue;
            };
            if every_floor_fits {
                push(&mut ends, (first + self.floor, self.last_end(last, time_s)));
                continue;
            }
            // The last end never decreases from one start to the next.
            let mut end = *first;
            for begin in *first..=last {
                if self.finish_s(begin, begin + self.floor) > time_s {
                    continue;
                }
                end = end.max(begin + self.floor);
                let most = (self.sums.len() - 1).min(begin.saturating_add(self.cap));
                while end < most && self.finish_s(begin, end + 1) <= time_s {
                    end += 1;
                }
                push(&mut ends, (begin + self.floor, end));
            }
        }
        ends
    }
}

/// Adds a range whose start is not before the starts of the others.
fn push(ranges: &mut Reached, range: (usize, usize)) {
    match ranges.last_mut() {
        Some(last) if range.0 <= last.1 + 1 => last.1 = last.1.max(range.1),
        _ => ranges.push(range),
    }
}

/// Returns the positions that the first 0, 1, 2, ... workers can reach by `time_s`; `None` if all together do
/// not reach the end.
fn reach(stretches: &[WorkerRange<'_>], end: usize, time_s: f64) -> Option<Vec<Reached>> {
    let mut reached = vec![vec![(0, 0)]];
    for stretch in stretches {
        let next = stretch.reach(reached.last()?, time_s);
        reached.push(next);
    }
    let at_end = reached.last()?.last().is_some_and(|(_, last)| *last == end);
    at_end.then_some(reached)
}

/// Cuts the sequence, starting at the end. Each worker gets the smallest range that the workers before it
/// allow.
fn cut(stretches: &[WorkerRange<'_>], reached: &[Reached], end: usize, time_s: f64) -> Vec<u64> {
    let mut end = end;
    let mut batches: Vec<u64> = Vec::with_capacity(stretches.len());
    for (stretch, reached) in stretches.iter().zip(reached).rev() {
        let fits = |begin: &usize| begin + stretch.floor <= end && stretch.last_end(*begin, time_s) >= end;
        let begins = reached.iter().rev().flat_map(|(first, last)| (*first..=*last).rev());
        // A start that fits is found after a few steps; the positions skipped before it are too close to
        // `end` for the floor.
        let begin = begins.skip_while(|begin| begin + stretch.floor > end).find(fits).unwrap_or(end);
        batches.push((end - begin) as u64);
        end = begin;
    }
    batches.reverse();
    batches
}

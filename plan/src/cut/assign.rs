//! The assignment of samples to parts of given weights.

use std::collections::BTreeSet;

/// Number of other parts with which the refinement compares the part that finishes last, if one of them helps.
const PARTNERS: usize = 16;

/// The parts that samples are assigned to. Samples are numbered in descending order of cost, parts in descending order
/// of weight.
///
/// All sums and comparisons have a fixed order, so every platform computes the same parts.
#[derive(Debug, Clone)]
pub(super) struct Assignment<'a> {
    costs: &'a [f64],
    weights: &'a [f64],
    /// Samples of each part, in ascending order.
    pub(super) parts: Vec<Vec<usize>>,
    loads: Vec<f64>,
}

/// An exchange of samples between the part that finishes last and another part.
struct Exchange {
    finish: f64,
    given: usize,
    taken: Option<usize>,
}

impl<'a> Assignment<'a> {
    /// Creates parts without samples. Costs and weights must be positive and in descending order.
    pub(super) fn empty(costs: &'a [f64], weights: &'a [f64]) -> Self {
        Self { costs, weights, parts: vec![Vec::new(); weights.len()], loads: vec![0.0; weights.len()] }
    }

    /// Assigns the samples, the longest first, each to the part that would finish it first. Ties go to the part with the
    /// larger weight.
    pub(super) fn longest_first(costs: &'a [f64], weights: &'a [f64]) -> Self {
        let mut assignment = Self::empty(costs, weights);
        for (sample, &cost) in costs.iter().enumerate() {
            if let Some(part) = assignment.first_to_finish(cost, |_| true) {
                assignment.add(part, sample);
            }
        }
        assignment
    }

    /// Returns the part, of those allowed, that would finish this additional cost first.
    pub(super) fn first_to_finish(&self, cost: f64, is_allowed: impl Fn(usize) -> bool) -> Option<usize> {
        let mut first: Option<(usize, f64)> = None;
        for (part, (load, weight)) in self.loads.iter().zip(self.weights).enumerate() {
            let finish = (load + cost) / weight;
            if first.is_none_or(|(_, earliest)| finish < earliest) && is_allowed(part) {
                first = Some((part, finish));
            }
        }
        first.map(|(part, _)| part)
    }

    /// Adds samples in ascending order to a part.
    pub(super) fn add(&mut self, part: usize, sample: usize) {
        self.parts[part].push(sample);
        self.loads[part] += self.costs[sample];
    }

    /// Returns the cost of a part over its weight.
    fn finish(&self, part: usize) -> f64 {
        self.loads[part] / self.weights[part]
    }

    /// Returns the finish of the part that finishes last.
    pub(super) fn latest(&self) -> f64 {
        (0..self.parts.len()).map(|part| self.finish(part)).fold(0.0, f64::max)
    }

    /// Gives each part with samples at least its floor. A part takes the cheapest sample of the part that finishes last
    /// among those with more than their floor. Returns whether there were enough samples.
    pub(super) fn fill(&mut self, floors: &[usize]) -> bool {
        for part in 0..self.parts.len() {
            while !self.parts[part].is_empty() && self.parts[part].len() < floors[part] {
                let spares = (0..self.parts.len()).filter(|&other| self.parts[other].len() > floors[other]);
                let Some(donor) = spares.reduce(|a, b| if self.finish(b) > self.finish(a) { b } else { a })
                else {
                    return false;
                };
                let sample = self.parts[donor][self.parts[donor].len() - 1];
                self.exchange(donor, part, sample, None);
            }
        }
        true
    }

    /// Moves samples away from the part that finishes last, or exchanges one of them for a cheaper one of another part.
    /// Each part with samples keeps as many as its floor.
    ///
    /// This ends when the last part finishes by the target, when no exchange helps, or after a number of steps in
    /// proportion to the parts.
    pub(super) fn refine(&mut self, floors: &[usize], target: f64) {
        // The bits of positive floats have the order of the floats.
        let mut order: BTreeSet<(u64, usize)> =
            (0..self.parts.len()).map(|part| (self.finish(part).to_bits(), part)).collect();
        for _ in 0..64 + 8 * self.parts.len() {
            let Some(&(_, last)) = order.last().filter(|(finish, _)| f64::from_bits(*finish) > target) else {
                return;
            };
            let mut best: Option<(usize, Exchange)> = None;
            for (tried, &(_, other)) in order.iter().take(order.len() - 1).enumerate() {
                if tried >= PARTNERS && best.is_some() {
                    break;
                }
                let finish = best.as_ref().map_or(self.finish(last), |(_, best)| best.finish);
                best = self.improvement(last, other, floors, finish).map(|new| (other, new)).or(best);
                if best.as_ref().is_some_and(|(_, best)| best.finish <= target) {
                    break;
                }
            }
            let Some((other, best)) = best else { return };
            for part in [last, other] {
                order.remove(&(self.finish(part).to_bits(), part));
            }
            self.exchange(last, other, best.given, best.taken);
            order.extend([last, other].map(|part| (self.finish(part).to_bits(), part)));
        }
    }

    /// Returns the exchange after which the later one of two parts finishes earliest, if that is before `finish`.
    fn improvement(&self, last: usize, other: usize, floors: &[usize], finish: f64) -> Option<Exchange> {
        let (from, to) = (&self.parts[last], &self.parts[other]);
        let may_move = from.len() > floors[last] && (!to.is_empty() || floors[other] <= 1);
        let (weight, other_weight) = (self.weights[last], self.weights[other]);
        // With this difference of the costs, both finish at the same time.
        let ideal = (self.loads[last] * other_weight - self.loads[other] * weight) / (weight + other_weight);
        // A difference below rounding errors could be repeated without end.
        let mut earliest = finish * (1.0 - 1e-12);
        let mut best = None;
        let mut next = 0;
        for &given in from {
            let cost = self.costs[given];
            // Both lists descend in cost, so the partner of the next sample is never before this one's.
            while next < to.len() && self.costs[to[next]] > cost - ideal {
                next += 1;
            }
            let above = next.checked_sub(1).map(|at| Some(to[at]));
            let below = to.get(next).map(|&sample| Some(sample));
            for taken in [above, below, may_move.then_some(None)].into_iter().flatten() {
                let moved = cost - taken.map_or(0.0, |sample| self.costs[sample]);
                let after =
                    ((self.loads[last] - moved) / weight).max((self.loads[other] + moved) / other_weight);
                if after < earliest {
                    earliest = after;
                    best = Some(Exchange { finish: after, given, taken });
                }
            }
        }
        best
    }

    fn exchange(&mut self, from: usize, to: usize, given: usize, taken: Option<usize>) {
        let mut transfer = |from: usize, to: usize, sample: usize| {
            if let Ok(at) = self.parts[from].binary_search(&sample) {
                self.parts[from].remove(at);
            }
            if let Err(at) = self.parts[to].binary_search(&sample) {
                self.parts[to].insert(at, sample);
            }
            self.loads[from] -= self.costs[sample];
            self.loads[to] += self.costs[sample];
        };
        transfer(from, to, given);
        if let Some(sample) = taken {
            transfer(to, from, sample);
        }
    }
}

/// Returns a finish time before which no assignment can end: the optimum with preemption (Horvath, Lam and Sethi, J. ACM
/// 1977). It is the maximum of all costs over all weights, and of the k largest costs over the k largest weights for each
/// smaller k. Costs and weights are in descending order.
pub(super) fn lower_bound(costs: &[f64], weights: &[f64]) -> f64 {
    let mut bound = costs.iter().sum::<f64>() / weights.iter().sum::<f64>();
    let (mut cost_sum, mut weight_sum) = (0.0, 0.0);
    for (cost, weight) in costs.iter().zip(weights).take(weights.len().saturating_sub(1)) {
        cost_sum += cost;
        weight_sum += weight;
        bound = bound.max(cost_sum / weight_sum);
    }
    bound
}

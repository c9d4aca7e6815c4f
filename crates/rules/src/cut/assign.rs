//! The assignment of samples to parts of given weights.

/// The parts that samples are assigned to. Samples are numbered in descending order of cost, parts in descending order
/// of weight.
///
/// All sums and comparisons have a fixed order, so every platform computes the same parts.
#[derive(Debug, Clone)]
pub(super) struct Assignment<'a> {
    pub(super) costs: &'a [f64],
    pub(super) weights: &'a [f64],
    /// Samples of each part, in ascending order.
    pub(super) parts: Vec<Vec<usize>>,
    pub(super) loads: Vec<f64>,
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
    pub(super) fn finish(&self, part: usize) -> f64 {
        self.loads[part] / self.weights[part]
    }

    /// Returns the finish of the part that finishes last.
    pub(super) fn latest(&self) -> f64 {
        (0..self.parts.len()).map(|part| self.finish(part)).fold(0.0, f64::max)
    }

    /// Gives each part with samples at least its floor. A part takes the cheapest sample of the part that finishes last
    /// among those with more than their floor. Returns whether there were enough samples.
    pub(super) fn fill(&mut self, floors: &[usize]) -> bool {
        let busy = self.parts.iter().zip(floors).filter(|(samples, _)| !samples.is_empty());
        if busy.map(|(_, &floor)| floor as u128).sum::<u128>() > self.costs.len() as u128 {
            return false;
        }
        for part in 0..self.parts.len() {
            while !self.parts[part].is_empty() && self.parts[part].len() < floors[part] {
                let spares = (0..self.parts.len()).filter(|&other| self.parts[other].len() > floors[other]);
                let Some(donor) = spares.reduce(|a, b| if self.finish(b) > self.finish(a) { b } else { a })
                else {
                    return false;
                };
                let sample = self.parts[donor][self.parts[donor].len() - 1];
                self.transfer(sample, donor, part);
            }
        }
        true
    }

    /// Moves a sample from one part to another.
    pub(super) fn transfer(&mut self, sample: usize, from: usize, to: usize) {
        if let Ok(at) = self.parts[from].binary_search(&sample) {
            self.parts[from].remove(at);
        }
        if let Err(at) = self.parts[to].binary_search(&sample) {
            self.parts[to].insert(at, sample);
        }
        self.loads[from] -= self.costs[sample];
        self.loads[to] += self.costs[sample];
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

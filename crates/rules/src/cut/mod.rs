//! The cut of an iteration whose samples differ in cost: which part computes which samples, in which passes.
//!
//! - `assign`: samples to parts, in proportion to the weights
//! - `refine`: exchanges of samples between parts
//! - `pack`: the samples of a part to passes of at most `max_tokens`
//! - `solve`: both together, with equal numbers of passes
//! - `check`: the rules of the passes and of the input

mod assign;
mod check;
mod pack;
mod refine;
mod solve;

pub use check::{COST_MAX, COST_MIN, CutError, LENGTH_MAX, PassRules};

use assign::lower_bound;
use solve::Solver;

/// The samples of each part of an iteration, by pass.
///
/// The costs of the parts are in proportion to their weights, as far as whole samples allow: longest first, then moves
/// and exchanges. The same input gives the same cut on every platform.
///
/// Passes keep these rules:
///
/// - Every sample is in exactly one pass, and no pass exceeds `max_tokens`.
/// - Each pass has at least `least` samples, unless the whole iteration has too few; then one part has all samples.
/// - With `is_equal`, every part with samples has the same number of passes. A part with too few samples gets cheap ones from
///   others. If there are too few, or the iteration would take longer, the parts with the lowest weights get none.
/// - The passes of a part have similar costs or, if padded, samples of similar length. The first is the most expensive.
#[derive(Debug, Clone, PartialEq)]
pub struct Cut {
    parts: Vec<Part>,
    excess: f64,
}

/// The samples of one part.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Part {
    /// Positions of the samples of each pass, in ascending order.
    pub passes: Vec<Vec<usize>>,
    /// Sum of the samples' costs.
    pub cost: f64,
}

impl Cut {
    /// Cuts an iteration of samples with these costs into one part for each weight. The unit of the costs does not matter. A
    /// part of weight 0 gets no samples.
    ///
    /// # Errors
    /// An argument breaks its rule: see [`CutError`].
    pub fn new(costs: &[f64], weights: &[u64], rules: &PassRules<'_>) -> Result<Self, CutError> {
        check::check(costs, weights, rules)?;
        let mut positions: Vec<usize> = (0..costs.len()).collect();
        positions.sort_by(|&a, &b| costs[b].total_cmp(&costs[a]));
        let mut order: Vec<usize> = (0..weights.len()).filter(|&part| weights[part] > 0).collect();
        order.sort_by(|&a, &b| weights[b].cmp(&weights[a]));
        // So multiples of the weights give the same floats.
        let divisor = weights.iter().copied().fold(0, gcd).max(1);
        let solver = Solver {
            costs: &positions.iter().map(|&position| costs[position]).collect::<Vec<_>>(),
            weights: &order.iter().map(|&part| (weights[part] / divisor) as f64).collect::<Vec<_>>(),
            lengths: &positions
                .iter()
                .map(|&position| rules.lengths.map_or(1, |lengths| lengths[position]))
                .collect::<Vec<_>>(),
            rules,
        };
        let mut parts = vec![Part::default(); weights.len()];
        for (part, passes) in order.iter().zip(solver.solve()) {
            parts[*part] = Part::new(&passes, &positions, costs);
        }
        let finish = parts.iter().zip(weights).filter(|(_, weight)| **weight > 0);
        let latest = finish.map(|(part, weight)| part.cost / (weight / divisor) as f64).fold(0.0, f64::max);
        let bound = lower_bound(solver.costs, solver.weights);
        // The sums of bound and parts have different orders.
        let excess = if costs.is_empty() { 0.0 } else { (latest / bound - 1.0).max(0.0) };
        Ok(Self { parts, excess })
    }

    /// Returns the parts in the order of the weights.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the largest number of passes of a part.
    pub fn passes(&self) -> usize {
        self.parts.iter().map(|part| part.passes.len()).max().unwrap_or(0)
    }

    /// Returns by how much the part that finishes last exceeds a lower bound, as a fraction of the bound. The bound is the
    /// optimum with preemption: the maximum of all costs over all weights, and of the k largest costs over the k largest
    /// weights for each smaller k.
    pub fn excess(&self) -> f64 {
        self.excess
    }
}

impl Part {
    fn new(passes: &[Vec<usize>], positions: &[usize], costs: &[f64]) -> Self {
        let ascending = |pass: &Vec<usize>| {
            let mut pass: Vec<usize> = pass.iter().map(|&sample| positions[sample]).collect();
            pass.sort_unstable();
            let cost: f64 = pass.iter().map(|&position| costs[position]).sum();
            (cost, pass)
        };
        let mut passes: Vec<(f64, Vec<usize>)> = passes.iter().map(ascending).collect();
        passes.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let cost = passes.iter().map(|(cost, _)| cost).sum();
        Self { passes: passes.into_iter().map(|(_, pass)| pass).collect(), cost }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

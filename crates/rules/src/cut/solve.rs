//! Parts and their passes together.

use super::assign::{Assignment, lower_bound};
use super::check::PassRules;
use super::pack::Packer;
use super::refine::refine;

/// Relative distance from the lower bound at which the refinement ends.
const TOLERANCE: f64 = 1e-4;

/// Maximum number of attempts, each with an eighth of the parts less.
const ATTEMPTS_MAX: usize = 8;

/// Maximum number of attempts to give samples to parts with too few.
const FILLS_MAX: usize = 8;

/// The passes of each part, as samples.
pub(super) type Passes = Vec<Vec<Vec<usize>>>;

/// The sorted input: samples in descending order of cost, and positive weights in descending order.
pub(super) struct Solver<'a> {
    pub(super) costs: &'a [f64],
    pub(super) weights: &'a [f64],
    pub(super) lengths: &'a [u64],
    pub(super) rules: &'a PassRules<'a>,
}

/// A valid cut, and the finish of the part that finishes last.
struct Attempt {
    passes: Passes,
    finish: f64,
}

impl Solver<'_> {
    /// Returns the passes of the parts in the order of the weights. Parts after the last are empty.
    pub(super) fn solve(&self) -> Passes {
        let mut best: Option<Attempt> = None;
        let mut parts = self.weights.len();
        for _ in 0..ATTEMPTS_MAX {
            let weights = &self.weights[..parts];
            let mut assigned = Assignment::longest_first(self.costs, weights);
            let target = self.target(weights);
            refine(&mut assigned, &vec![0; parts], target);
            let wanted = self.wanted(&assigned);
            if let Some(passes) = self.divided(&assigned, &wanted)
                && best.as_ref().is_none_or(|best| assigned.latest() < best.finish)
            {
                return passes;
            }
            let attempts = [self.filled(assigned, wanted.clone(), target), self.dealt(weights)];
            best = best
                .into_iter()
                .chain(attempts.into_iter().flatten())
                .reduce(|a, b| if b.finish < a.finish { b } else { a });
            let fewer = parts - parts.div_ceil(8);
            if fewer == 0 {
                break;
            }
            let perfect = lower_bound(self.costs, &self.weights[..fewer]);
            if best.as_ref().is_some_and(|best| best.finish <= perfect) {
                break;
            }
            parts = fewer;
        }
        let one = || self.dealt(&self.weights[..1]);
        best.or_else(one).map(|best| best.passes).unwrap_or_default()
    }

    fn packer(&self) -> Packer<'_> {
        Packer {
            costs: self.costs,
            lengths: self.lengths,
            max_tokens: self.rules.max_tokens.unwrap_or(u64::MAX),
            is_padded: self.rules.is_padded,
            least: self.rules.least,
        }
    }

    fn target(&self, weights: &[f64]) -> f64 {
        lower_bound(self.costs, weights) * (1.0 + TOLERANCE)
    }

    /// Returns the number of passes that each part should have; 0 for parts without samples.
    fn wanted(&self, assigned: &Assignment<'_>) -> Vec<usize> {
        let packer = self.packer();
        let passes = |samples: &Vec<usize>| match samples.len() {
            0 => 0,
            _ => packer.needed(samples).max(self.rules.passes),
        };
        let wanted: Vec<usize> = assigned.parts.iter().map(passes).collect();
        let most = wanted.iter().copied().max().unwrap_or(0);
        if !self.rules.is_equal {
            return wanted;
        }
        wanted.into_iter().map(|passes| if passes > 0 { most } else { 0 }).collect()
    }

    /// Returns the parts divided into the wanted numbers of passes; `None` if a part has too few samples.
    fn divided(&self, assigned: &Assignment<'_>, wanted: &[usize]) -> Option<Passes> {
        let packer = self.packer();
        let divide = |(samples, &passes): (&Vec<usize>, &usize)| {
            if passes == 0 {
                return Some(Vec::new());
            }
            let is_enough = samples.len() >= passes.saturating_mul(self.rules.least);
            is_enough.then(|| packer.split(samples, passes)).flatten()
        };
        assigned.parts.iter().zip(wanted).map(divide).collect()
    }

    /// Returns the wanted passes after parts with too few samples got more from others.
    fn filled(&self, mut assigned: Assignment<'_>, mut wanted: Vec<usize>, target: f64) -> Option<Attempt> {
        // Parts without samples get none.
        let floor = |&passes: &usize| match passes {
            0 => usize::MAX,
            passes => passes.saturating_mul(self.rules.least),
        };
        for _ in 0..FILLS_MAX {
            let floors: Vec<usize> = wanted.iter().map(floor).collect();
            if !assigned.fill(&floors) {
                return None;
            }
            refine(&mut assigned, &floors, target);
            if let Some(passes) = self.divided(&assigned, &wanted) {
                return Some(Attempt { passes, finish: assigned.latest() });
            }
            // A part that gave its short samples away may need more passes.
            let again = self.wanted(&assigned);
            wanted = wanted.into_iter().zip(again).map(|(before, again)| before.max(again)).collect();
        }
        None
    }

    /// Divides all samples into passes, the same number for each part, and assigns whole passes to parts. This needs the
    /// fewest samples. `None` if they are too few, except for one part.
    fn dealt(&self, weights: &[f64]) -> Option<Attempt> {
        let packer = self.packer();
        let samples: Vec<usize> = (0..self.costs.len()).collect();
        let needed = packer.needed(&samples).div_ceil(weights.len());
        let possible = samples.len() / weights.len() / self.rules.least;
        let passes = match weights.len() {
            1 => needed.max(self.rules.passes.min(possible)),
            _ => Some(needed.max(self.rules.passes)).filter(|passes| *passes <= possible)?,
        };
        let mut dealt = packer.split(&samples, passes * weights.len())?;
        dealt.sort_by(|a, b| packer.cost(b).total_cmp(&packer.cost(a)));
        let costs: Vec<f64> = dealt.iter().map(|pass| packer.cost(pass)).collect();
        let mut assigned = Assignment::empty(&costs, weights);
        for (pass, &cost) in costs.iter().enumerate() {
            let part = assigned.first_to_finish(cost, |part| assigned.parts[part].len() < passes)?;
            assigned.add(part, pass);
        }
        let taken = |passes: &Vec<usize>| passes.iter().map(|&pass| dealt[pass].clone()).collect();
        let passes = assigned.parts.iter().map(taken).collect();
        Some(Attempt { passes, finish: assigned.latest() })
    }
}

//! Levenberg-Marquardt: damped Gauss-Newton steps on the squared errors plus a penalty on the weights.

use super::cholesky;
use super::equations::{NormalEquations, Table};
use super::network::Network;
use super::penalty::{Decay, most_probable, sum_of_squares};

/// Damping at the start, as a share of the mean curvature.
const DAMPING_START: f64 = 1e-2;

/// The least damping, and the one from which on no step is tried any more.
const DAMPING_RANGE: (f64, f64) = (1e-12, 1e8);

/// What the damping is multiplied with after a step that was taken, and after one that was not.
const DAMPING_FACTORS: (f64, f64) = (0.2, 4.0);

/// An iteration that betters the objective by less than this share counts as none.
const GAIN_MIN: f64 = 1e-6;

/// Iterations in a row without gain, on the rows that are fitted or on those held out, after which it is over.
const PATIENCE: usize = 8;

/// Trains a network on `fit` in at most so many iterations. Where rows are held out, what comes back is the network that
/// was best on them.
pub(super) fn train(
    network: Network,
    fit: &Table,
    held_out: &Table,
    decay: Decay,
    iterations: usize,
) -> Network {
    let mut best = (held_out.squares(&network), network.clone());
    let mut descent = Descent::new(network, decay);
    let (mut idle, mut worse) = (0, 0);
    for _ in 0..iterations {
        let Some(gain) = descent.step(fit, decay) else { break };
        idle = if gain < GAIN_MIN { idle + 1 } else { 0 };
        let squares = held_out.squares(&descent.network);
        if squares < best.0 {
            best.0 = squares;
            best.1.weights.copy_from_slice(&descent.network.weights);
            worse = 0;
        } else if !held_out.targets.is_empty() {
            worse += 1;
        }
        if idle.max(worse) >= PATIENCE {
            break;
        }
    }
    if held_out.targets.is_empty() { descent.network } else { best.1 }
}

/// A network on its way down, and the room that a step takes.
struct Descent {
    network: Network,
    trial: Network,
    equations: NormalEquations,
    damping: f64,
    penalty: f64,
    /// The damped `J'J`, then its factor.
    damped: Vec<f64>,
    step: Vec<f64>,
}

impl Descent {
    fn new(network: Network, decay: Decay) -> Self {
        let size = network.weights.len();
        Self {
            trial: network.clone(),
            equations: NormalEquations::new(&network),
            damping: DAMPING_START,
            penalty: decay.start(),
            damped: vec![0.0; size * size],
            step: vec![0.0; size],
            network,
        }
    }

    /// Takes a step that betters the objective, damped as much as that takes; by which share it does. None where no
    /// step does.
    fn step(&mut self, fit: &Table, decay: Decay) -> Option<f64> {
        let squares = self.equations.sum(&self.network, fit);
        let weights = &self.network.weights;
        if decay == Decay::Evidence {
            let evidence = (self.equations.curvature(), squares, fit.targets.len());
            self.penalty = most_probable(self.penalty, evidence, weights, &mut self.damped, &mut self.step);
        }
        let objective = squares + self.penalty * sum_of_squares(weights);
        let curvature = self.equations.mean_curvature();
        while self.damping <= DAMPING_RANGE.1 {
            if self.try_damped(self.damping * curvature) {
                let tried = fit.squares(&self.trial) + self.penalty * sum_of_squares(&self.trial.weights);
                if tried < objective {
                    self.damping = (self.damping * DAMPING_FACTORS.0).max(DAMPING_RANGE.0);
                    std::mem::swap(&mut self.network, &mut self.trial);
                    return Some(1.0 - tried / objective);
                }
            }
            self.damping *= DAMPING_FACTORS.1;
        }
        None
    }

    /// Makes `trial` the network a step away: `(J'J + (penalty + damping) I) step = J'e - penalty w`. False where there is
    /// no such step.
    fn try_damped(&mut self, damping: f64) -> bool {
        let size = self.step.len();
        self.damped.copy_from_slice(self.equations.curvature());
        self.damped.iter_mut().step_by(size + 1).for_each(|value| *value += self.penalty + damping);
        if !cholesky::factor(&mut self.damped, size) {
            return false;
        }
        let slopes = self.equations.descent().iter().zip(&self.network.weights);
        self.step.iter_mut().zip(slopes).for_each(|(step, (by, weight))| *step = by - self.penalty * weight);
        cholesky::solve(&self.damped, size, &mut self.step);
        let moved = self.network.weights.iter().zip(&self.step).map(|(weight, step)| weight + step);
        self.trial.weights.iter_mut().zip(moved).for_each(|(trial, moved)| *trial = moved);
        true
    }
}

//! Levenberg-Marquardt: damped Gauss-Newton steps on the squared errors plus a penalty on the weights.

use super::cholesky;
use super::equations::{NormalEquations, Table};
use super::network::Network;
use super::penalty::sum_of_squares;

/// Initial damping, as a share of the mean curvature.
const DAMPING_START: f64 = 1e-2;

/// Minimum damping, and maximum damping: above it no step is tried.
const DAMPING_RANGE: (f64, f64) = (1e-12, 1e8);

/// Factors of the damping after a successful and after a rejected step.
const DAMPING_FACTORS: (f64, f64) = (0.2, 4.0);

/// Minimum relative improvement of the objective: a smaller one counts as no improvement.
const GAIN_MIN: f64 = 1e-6;

/// Number of consecutive iterations without improvement, on the fitted or on the held-out rows, after which
/// training stops.
const PATIENCE: usize = 8;

/// Trains a network on `fit` for at most `iterations` iterations. If rows are held out, it returns the
/// network that was best on them.
pub(super) fn train(
    network: Network,
    fit: &Table,
    held_out: &Table,
    penalty: f64,
    iterations: usize,
) -> Network {
    let mut best = (held_out.squares(&network), network.clone());
    let mut descent = Descent::new(network, penalty);
    let (mut idle, mut worse) = (0, 0);
    for _ in 0..iterations {
        let Some(gain) = descent.step(fit) else { break };
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

/// A network in training, with buffers for one step.
struct Descent {
    network: Network,
    trial: Network,
    equations: NormalEquations,
    damping: f64,
    penalty: f64,
    /// The damped `J'J`, then its Cholesky factor.
    damped: Vec<f64>,
    step: Vec<f64>,
}

impl Descent {
    fn new(network: Network, penalty: f64) -> Self {
        let size = network.weights.len();
        Self {
            trial: network.clone(),
            equations: NormalEquations::new(&network),
            damping: DAMPING_START,
            penalty,
            damped: vec![0.0; size * size],
            step: vec![0.0; size],
            network,
        }
    }

    /// Takes one step that improves the objective, with as much damping as needed. Returns the relative
    /// improvement, or `None` if no step improves the objective.
    fn step(&mut self, fit: &Table) -> Option<f64> {
        let squares = self.equations.sum(&self.network, fit);
        let objective = squares + self.penalty * sum_of_squares(&self.network.weights);
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

    /// Sets `trial` to the network after the step `(J'J + (penalty + damping) I) step = J'e - penalty w`.
    /// Returns false if the equations have no solution.
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

//! Levenberg-Marquardt: damped Gauss-Newton steps on the squared errors plus a penalty on the weights.

use super::cholesky;
use super::equations::{NormalEquations, Table};
use super::network::Network;

/// Damping at the start, and its lower and upper end, as shares of the mean curvature.
const DAMPING: (f64, f64, f64) = (1e-2, 1e-12, 1e8);

/// Damping after a step that was taken, and after one that was not.
const DAMPING_FACTORS: (f64, f64) = (0.2, 4.0);

/// An iteration that betters the objective by less than this share counts as none.
const GAIN_MIN: f64 = 1e-6;

/// Iterations in a row without gain, on the fit or on the rows held out, after which it is over.
const PATIENCE: usize = 8;

/// Range of the penalty, per squared weight against one squared error, where the data decide on it.
const PENALTIES: (f64, f64) = (1e-10, 1e2);

/// What weighs the weights against the errors, `sum e^2 + penalty sum w^2`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    /// This penalty (0 and up) throughout.
    Fixed(f64),
    /// The penalty under which the data are most probable, found on the way (MacKay's evidence, as in Foresee and Hagan's
    /// Bayesian regularisation).
    Evidence,
}

/// Trains a network on `fit` in at most so many iterations. Where rows are held out, what comes back is the network that
/// was best on them.
pub(super) fn train(
    mut network: Network,
    fit: &Table,
    held_out: &Table,
    decay: Decay,
    iterations: usize,
) -> Network {
    let size = network.weights.len();
    let mut equations = NormalEquations::new(&network);
    let mut damped = vec![0.0; size * size];
    let mut step = vec![0.0; size];
    let mut trial = network.clone();
    let mut best = network.clone();
    let mut best_held_out = held_out.squares(&network);
    let mut damping = DAMPING.0;
    let mut penalty = match decay {
        Decay::Fixed(penalty) => penalty,
        Decay::Evidence => 1e-2,
    };
    let (mut idle, mut worse) = (0, 0);
    for _ in 0..iterations {
        let squares = equations.sum(&network, fit);
        let weights: f64 = network.weights.iter().map(|weight| weight * weight).sum();
        if decay == Decay::Evidence {
            penalty = evident_penalty(
                &equations,
                penalty,
                squares,
                weights,
                fit.targets.len(),
                &mut damped,
                &mut step,
            );
        }
        let objective = squares + penalty * weights;
        let curvature = equations.mean_curvature();
        let gain = loop {
            damped.copy_from_slice(equations.curvature());
            damped.iter_mut().step_by(size + 1).for_each(|value| *value += penalty + damping * curvature);
            if cholesky::factor(&mut damped, size) {
                let slopes = equations.descent().iter().zip(&network.weights);
                step.iter_mut().zip(slopes).for_each(|(step, (slope, w))| *step = slope - penalty * w);
                cholesky::solve(&damped, size, &mut step);
                let moved = network.weights.iter().zip(&step).map(|(weight, step)| weight + step);
                trial.weights.iter_mut().zip(moved).for_each(|(trial, moved)| *trial = moved);
                let weights: f64 = trial.weights.iter().map(|weight| weight * weight).sum();
                let gain = objective - fit.squares(&trial) - penalty * weights;
                if gain > 0.0 {
                    break gain;
                }
            }
            damping *= DAMPING_FACTORS.1;
            if damping > DAMPING.2 {
                break 0.0;
            }
        };
        if gain <= 0.0 {
            break;
        }
        damping = (damping * DAMPING_FACTORS.0).max(DAMPING.1);
        std::mem::swap(&mut network, &mut trial);
        idle = if gain < GAIN_MIN * objective { idle + 1 } else { 0 };
        if !held_out.targets.is_empty() {
            let squares = held_out.squares(&network);
            if squares < best_held_out {
                best_held_out = squares;
                best.weights.copy_from_slice(&network.weights);
                worse = 0;
            } else {
                worse += 1;
            }
        }
        if idle.max(worse) >= PATIENCE {
            break;
        }
    }
    if held_out.targets.is_empty() { network } else { best }
}

/// The next estimate of the most probable penalty: `gamma` weights are determined by the data, and share their squares as
/// the other degrees of freedom share the squared errors.
fn evident_penalty(
    equations: &NormalEquations,
    penalty: f64,
    squares: f64,
    weights: f64,
    rows: usize,
    damped: &mut [f64],
    scratch: &mut [f64],
) -> f64 {
    let size = scratch.len();
    damped.copy_from_slice(equations.curvature());
    damped.iter_mut().step_by(size + 1).for_each(|value| *value += penalty);
    if !cholesky::factor(damped, size) {
        return penalty;
    }
    let gamma = size as f64 - penalty * cholesky::inverse_trace(damped, size, scratch);
    let free = (rows as f64 - gamma).max(1.0);
    (gamma * squares / (free * weights)).clamp(PENALTIES.0, PENALTIES.1)
}

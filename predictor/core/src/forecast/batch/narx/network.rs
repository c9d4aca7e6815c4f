//! The network: one hidden layer of tanh units beside a linear connection from the inputs to the output.
//!
//! `f(z) = c z + sum_j v_j tanh(w_j z)` with `z` the scaled regressors and a 1. The linear connection carries what an ARX
//! would, so that the hidden units are left with what is not linear.

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

/// A network; its weights in one vector: `w_0`, `w_1`, .., then `c`, then `v`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Network {
    /// Inputs, the 1 included.
    inputs: usize,
    hidden: usize,
    pub weights: Vec<f64>,
}

impl Network {
    /// How many weights a network has, on so many inputs (the 1 included).
    pub fn size(inputs: usize, hidden: usize) -> usize {
        (hidden + 1) * inputs + hidden
    }

    /// A network with small random weights: hidden units start where tanh bends but does not saturate.
    pub fn random(inputs: usize, hidden: usize, rng: &mut impl Rng) -> Self {
        let mut symmetric = |width: f64| width * (2.0 * rng.random::<f64>() - 1.0);
        let spread = (3.0 / inputs as f64).sqrt();
        let mut weights: Vec<f64> = (0..hidden * inputs).map(|_| symmetric(spread)).collect();
        weights.extend((0..inputs + hidden).map(|_| symmetric(0.1)));
        Self { inputs, hidden, weights }
    }

    /// The output at `z`.
    pub fn output(&self, z: &[f64]) -> f64 {
        let (hidden, rest) = self.weights.split_at(self.hidden * self.inputs);
        let (linear, out) = rest.split_at(self.inputs);
        let units = hidden.chunks_exact(self.inputs).zip(out).map(|(w, v)| v * dot(w, z).tanh());
        dot(linear, z) + units.sum::<f64>()
    }

    /// The output at `z`, and of each hidden unit its activation and the slope of the output by what goes in,
    /// `v_j (1 - a_j^2)`.
    pub fn units(&self, z: &[f64], activations: &mut [f64], slopes: &mut [f64]) -> f64 {
        let (hidden, rest) = self.weights.split_at(self.hidden * self.inputs);
        let (linear, out) = rest.split_at(self.inputs);
        let mut output = dot(linear, z);
        let units = hidden.chunks_exact(self.inputs).zip(out);
        for ((w, v), (activation, slope)) in units.zip(activations.iter_mut().zip(slopes)) {
            *activation = dot(w, z).tanh();
            *slope = v * (1.0 - *activation * *activation);
            output += v * *activation;
        }
        output
    }

    /// How many inputs it has, the 1 included.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// How many hidden units it has.
    pub fn hidden(&self) -> usize {
        self.hidden
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

//! The network: one hidden layer of tanh units and a linear connection from the inputs to the output.
//!
//! `f(z) = c z + sum_j v_j tanh(w_j z)` with `z` the scaled regressors and a 1. The linear connection models
//! the linear part, as ARX does, so the hidden units only model the rest.

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use crate::forecast::scaling::Linear;

/// A network with its weights in one vector: `w_0`, `w_1`, .., then `c`, then `v`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Network {
    /// Number of inputs, including the 1.
    inputs: usize,
    hidden: usize,
    pub weights: Vec<f64>,
}

impl Network {
    /// Returns the number of weights of a network with this number of inputs, including the 1.
    pub fn size(inputs: usize, hidden: usize) -> usize {
        (hidden + 1) * inputs + hidden
    }

    /// Whether a stored network with this number of inputs, including the 1, is usable.
    pub fn is_valid(&self, inputs: usize) -> bool {
        self.inputs == inputs
            && self.hidden <= self.weights.len()
            && self.weights.len() == Self::size(inputs, self.hidden)
    }

    /// Creates a network with small random weights. Hidden units start in the nonlinear range of tanh, but
    /// not saturated.
    pub fn random(inputs: usize, hidden: usize, rng: &mut impl Rng) -> Self {
        let mut symmetric = |width: f64| width * (2.0 * rng.random::<f64>() - 1.0);
        let spread = (3.0 / inputs as f64).sqrt();
        let mut weights: Vec<f64> = (0..hidden * inputs).map(|_| symmetric(spread)).collect();
        weights.extend((0..inputs + hidden).map(|_| symmetric(0.1)));
        Self { inputs, hidden, weights }
    }

    /// Returns the network whose output is `out` of this network's output, and whose regressors give this network's by `columns`. `None` if a weight is not finite.
    pub fn mapped(&self, columns: &[Linear], out: Linear) -> Option<Self> {
        let mut mapped = self.clone();
        let (units, outer) = mapped.weights.split_at_mut((self.hidden + 1) * self.inputs);
        for unit in units.chunks_exact_mut(self.inputs) {
            let (weights, constant) = unit.split_at_mut(self.inputs - 1);
            for (weight, (factor, shift)) in weights.iter_mut().zip(columns) {
                constant[0] += *weight * shift;
                *weight *= factor;
            }
        }
        let linear = &mut units[self.hidden * self.inputs..];
        linear.iter_mut().chain(outer).for_each(|weight| *weight *= out.0);
        linear[self.inputs - 1] += out.1;
        mapped.weights.iter().all(|weight| weight.is_finite()).then_some(mapped)
    }

    /// Returns the output at `z`.
    pub fn output(&self, z: &[f64]) -> f64 {
        let (hidden, rest) = self.weights.split_at(self.hidden * self.inputs);
        let (linear, out) = rest.split_at(self.inputs);
        let units = hidden.chunks_exact(self.inputs).zip(out).map(|(w, v)| v * tanh(dot(w, z)));
        dot(linear, z) + units.sum::<f64>()
    }

    /// Returns the output at `z`. Also writes each hidden unit's activation and its slope: the derivative of
    /// the output by the unit's input, `v_j (1 - a_j^2)`.
    pub fn units(&self, z: &[f64], activations: &mut [f64], slopes: &mut [f64]) -> f64 {
        let (hidden, rest) = self.weights.split_at(self.hidden * self.inputs);
        let (linear, out) = rest.split_at(self.inputs);
        let mut output = dot(linear, z);
        let units = hidden.chunks_exact(self.inputs).zip(out);
        for ((w, v), (activation, slope)) in units.zip(activations.iter_mut().zip(slopes)) {
            *activation = tanh(dot(w, z));
            *slope = v * (1.0 - *activation * *activation);
            output += v * *activation;
        }
        output
    }

    /// Returns the number of inputs, including the 1.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns the number of hidden units.
    pub fn hidden(&self) -> usize {
        self.hidden
    }
}

/// Accurate to the rounding error of 1, and twice as fast as the library function. The library function is
/// accurate to the rounding error of its result, which makes no difference in the sums here.
fn tanh(x: f64) -> f64 {
    1.0 - 2.0 / (1.0 + (2.0 * x).exp())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tanh_is_tanh(x in prop_oneof![-1e3..1e3f64, -2.0..2.0f64, -1e-9..1e-9f64]) {
            prop_assert!((tanh(x) - x.tanh()).abs() < 4e-16);
        }
    }

    proptest! {
        /// A mapped network is the same function in other units.
        #[test]
        fn mapped_is_the_same_function(
            weights in prop::collection::vec(-2.0..2.0f64, Network::size(3, 2)),
            columns in prop::array::uniform2((-2.0..2.0f64, -2.0..2.0f64)),
            out in (-2.0..2.0f64, -2.0..2.0f64),
            z in prop::array::uniform2(-2.0..2.0f64),
        ) {
            let network = Network { inputs: 3, hidden: 2, weights };
            let of = |at: usize| columns[at].0 * z[at] + columns[at].1;
            let expected = out.0 * network.output(&[of(0), of(1), 1.0]) + out.1;
            let mapped = network.mapped(&columns, out).unwrap();
            prop_assert!((mapped.output(&[z[0], z[1], 1.0]) - expected).abs() < 1e-12);
        }
    }

    /// Computes c z + v tanh(w z) by hand, at z = (2, 1): c = (0.5, -1), w = (1, -2), v = 3; tanh 0 = 0 with
    /// slope 1.
    #[test]
    fn output_by_hand() {
        let network = Network { inputs: 2, hidden: 1, weights: vec![1.0, -2.0, 0.5, -1.0, 3.0] };
        let (mut activations, mut slopes) = ([9.0], [9.0]);
        assert_eq!(network.units(&[2.0, 1.0], &mut activations, &mut slopes), 0.0);
        assert_eq!((activations, slopes), ([0.0], [3.0]));
        let z = [3.0, 1.0];
        assert!((network.output(&z) - (0.5 + 3.0 * 1.0f64.tanh())).abs() < 1e-15);
        assert_eq!(network.output(&z), network.units(&z, &mut activations, &mut slopes));
    }
}

//! The normal equations of a network on a table: `J'J` and `J'e`, with `J` the derivatives of the outputs by
//! the weights.
//!
//! A row of `J` has three kinds of entries:
//!
//! - `g_j z` for the weights of unit `j`, with `g_j = v_j (1 - a_j^2)` the slope of the unit
//! - `g z` with `g = 1` for the linear connection
//! - the activations `a` for the output weights
//!
//! Each block of `J'J` is therefore a sum of products of slopes times products of inputs, both symmetric.
//! Summed as matrix products over chunks of rows, this takes about a third of the work of `J'J` itself, and
//! `J` is never stored.

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView1, ArrayViewMut1, Axis, s};

use super::network::Network;

/// Number of rows whose products are kept at a time; they stay in the cache while they are summed.
const CHUNK_ROWS: usize = 128;

/// Scaled rows, each with a 1 at the end, and their scaled targets.
#[derive(Debug)]
pub(super) struct Table {
    pub rows: Array2<f64>,
    pub targets: Vec<f64>,
}

impl Table {
    fn samples(&self) -> impl Iterator<Item = (&[f64], f64)> {
        let width = self.rows.ncols();
        self.rows.as_slice().unwrap_or_default().chunks_exact(width).zip(self.targets.iter().copied())
    }

    /// Returns the sum of squared errors of a network.
    pub fn squares(&self, network: &Network) -> f64 {
        self.samples().map(|(z, target)| (target - network.output(z)).powi(2)).sum()
    }
}

/// `J'J` and `J'e`, and buffers to compute them.
#[derive(Debug)]
pub(super) struct NormalEquations {
    inputs: usize,
    hidden: usize,
    /// Products of two slopes, by row of the chunk. The last slope is the 1 of the linear connection.
    slope_pairs: Array2<f64>,
    /// Products of two inputs.
    input_pairs: Array2<f64>,
    /// Products of an activation and a slope.
    mixed_pairs: Array2<f64>,
    activations: Array2<f64>,
    /// Sums of `slope_pairs' input_pairs`, `mixed_pairs' inputs` and `activations' activations`.
    blocks: [Array2<f64>; 3],
    /// `J'J`, row-major; only its upper triangle.
    curvature: Vec<f64>,
    /// `J'e`.
    descent: Vec<f64>,
}

impl NormalEquations {
    /// Allocates buffers for networks of this shape.
    pub fn new(network: &Network) -> Self {
        let (inputs, hidden, size) = (network.inputs(), network.hidden(), network.weights.len());
        let chunk = |width: usize| Array2::zeros((CHUNK_ROWS, width));
        let (slopes, mixed) = (pairs(hidden + 1), hidden * (hidden + 1));
        Self {
            inputs,
            hidden,
            slope_pairs: chunk(slopes),
            input_pairs: chunk(pairs(inputs)),
            mixed_pairs: chunk(mixed),
            activations: chunk(hidden),
            blocks: [(slopes, pairs(inputs)), (mixed, inputs), (hidden, hidden)].map(Array2::zeros),
            curvature: vec![0.0; size * size],
            descent: vec![0.0; size],
        }
    }

    /// Computes the equations of a network on a table and returns the sum of squared errors.
    pub fn sum(&mut self, network: &Network, table: &Table) -> f64 {
        self.descent.fill(0.0);
        self.blocks.iter_mut().for_each(|block| block.fill(0.0));
        let mut slopes = vec![1.0; self.hidden + 1];
        let mut activations = vec![0.0; self.hidden];
        let (by_units, by_out) = self.descent.split_at_mut((self.hidden + 1) * self.inputs);
        let mut squares = 0.0;
        for (rows, targets) in
            table.rows.axis_chunks_iter(Axis(0), CHUNK_ROWS).zip(table.targets.chunks(CHUNK_ROWS))
        {
            for (at, (z, target)) in rows.rows().into_iter().zip(targets).enumerate() {
                let z = z.to_slice().unwrap_or_default();
                let error = target - network.units(z, &mut activations, &mut slopes[..self.hidden]);
                squares += error * error;
                for (by_unit, slope) in by_units.chunks_exact_mut(self.inputs).zip(&slopes) {
                    add_scaled(by_unit, z, slope * error);
                }
                add_scaled(by_out, &activations, error);
                write_pairs(self.slope_pairs.row_mut(at), &slopes, |first| &slopes[first..]);
                write_pairs(self.input_pairs.row_mut(at), z, |first| &z[first..]);
                write_pairs(self.mixed_pairs.row_mut(at), &activations, |_| &slopes);
                self.activations.row_mut(at).assign(&ArrayView1::from(&activations));
            }
            let filled = s![..rows.nrows(), ..];
            let [units, mixed, out] = &mut self.blocks;
            let (slope_pairs, input_pairs) = (self.slope_pairs.slice(filled), self.input_pairs.slice(filled));
            let (mixed_pairs, outputs) = (self.mixed_pairs.slice(filled), self.activations.slice(filled));
            general_mat_mul(1.0, &slope_pairs.t(), &input_pairs, 1.0, units);
            general_mat_mul(1.0, &mixed_pairs.t(), &rows, 1.0, mixed);
            general_mat_mul(1.0, &outputs.t(), &outputs, 1.0, out);
        }
        self.arrange();
        squares
    }

    /// Returns the upper triangle of `J'J`, row-major.
    pub fn curvature(&self) -> &[f64] {
        &self.curvature
    }

    /// Returns `J'e`: half of the negative gradient of the squared errors.
    pub fn descent(&self) -> &[f64] {
        &self.descent
    }

    /// Returns the mean of the diagonal of `J'J`.
    pub fn mean_curvature(&self) -> f64 {
        let size = self.descent.len();
        self.curvature.iter().step_by(size + 1).sum::<f64>() / size as f64
    }

    /// Copies the sums to their positions in `J'J`.
    fn arrange(&mut self) {
        let (inputs, hidden, size) = (self.inputs, self.hidden, self.descent.len());
        let out = (hidden + 1) * inputs;
        let [units, mixed, activations] = &self.blocks;
        let mut pair = units.rows().into_iter();
        for first in 0..=hidden {
            for (second, sums) in (first..=hidden).zip(&mut pair) {
                let mut sums = sums.iter();
                for i in 0..inputs {
                    for (j, sum) in (i..inputs).zip(&mut sums) {
                        self.curvature[(first * inputs + i) * size + second * inputs + j] = *sum;
                        self.curvature[(first * inputs + j) * size + second * inputs + i] = *sum;
                    }
                }
            }
        }
        for ((at, i), sum) in mixed.indexed_iter() {
            let (unit, slope) = (at / (hidden + 1), at % (hidden + 1));
            self.curvature[(slope * inputs + i) * size + out + unit] = *sum;
        }
        for ((first, second), sum) in activations.indexed_iter() {
            self.curvature[(out + first) * size + out + second] = *sum;
        }
    }
}

/// Returns the number of pairs of values, each value with itself and with all later ones.
fn pairs(values: usize) -> usize {
    values * (values + 1) / 2
}

/// Writes the products of each value with its partners, one after the other.
fn write_pairs<'a>(mut place: ArrayViewMut1<'_, f64>, values: &[f64], partners: impl Fn(usize) -> &'a [f64]) {
    let mut rest = place.as_slice_mut().unwrap_or_default();
    for (at, value) in values.iter().enumerate() {
        let partners = partners(at);
        let (products, later) = rest.split_at_mut(partners.len());
        products.iter_mut().zip(partners).for_each(|(product, partner)| *product = value * partner);
        rest = later;
    }
}

fn add_scaled(sum: &mut [f64], values: &[f64], scale: f64) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += scale * value);
}

#[cfg(test)]
mod tests {
    use ndarray::Array1;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// Compares with the definition, using central differences and more rows than one chunk.
    #[test]
    fn are_those_of_the_definition() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(11);
        let (rows, inputs, hidden) = (CHUNK_ROWS + 7, 3, 2);
        let table = Table {
            rows: Array2::from_shape_fn((rows, inputs), |_| rng.random::<f64>() - 0.5),
            targets: (0..rows).map(|_| rng.random::<f64>()).collect(),
        };
        let network = Network::random(inputs, hidden, &mut rng);
        let size = network.weights.len();
        let jacobian = Array2::from_shape_fn((rows, size), |(row, at)| {
            let nudged = |by: f64| {
                let mut nudged = network.clone();
                nudged.weights[at] += by;
                nudged.output(&table.rows.row(row).to_vec())
            };
            (nudged(1e-5) - nudged(-1e-5)) / 2e-5
        });
        let errors: Array1<f64> = table.samples().map(|(z, target)| target - network.output(z)).collect();
        let (curvature, descent) = (jacobian.t().dot(&jacobian), jacobian.t().dot(&errors));

        let mut equations = NormalEquations::new(&network);
        // Two passes: the second must not include the sums of the first.
        for _ in 0..2 {
            let squares = equations.sum(&network, &table);
            assert!((squares - table.squares(&network)).abs() < 1e-12);
        }
        for i in 0..size {
            assert!((equations.descent()[i] - descent[i]).abs() < 1e-7, "slope {i}");
            for j in i..size {
                let (ours, defined) = (equations.curvature()[i * size + j], curvature[[i, j]]);
                assert!((ours - defined).abs() < 1e-7, "{i}, {j}: {ours} {defined}");
            }
        }
    }
}

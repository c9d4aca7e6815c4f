//! Iterations with samples of unequal length.

#![allow(clippy::expect_used, dead_code, missing_docs, reason = "tests and benchmarks use different parts")]

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, LogNormal};

/// Costs and lengths of the samples of an iteration, and the weights of the parts.
#[derive(Debug, Clone)]
pub struct Draw {
    pub costs: Vec<f64>,
    pub lengths: Vec<u64>,
    pub weights: Vec<u64>,
}

/// Draws lengths from a log-normal distribution with median 512, clipped to 16 to 8,192. The cost is the length plus
/// `quadratic` times its square. Without parts, the speeds are 1:2:2:4; else random from 1 to 4.
pub fn draw(seed: u64, samples: usize, sigma: f64, quadratic: f64, parts: Option<usize>) -> Draw {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let weights = match parts {
        Some(parts) => (0..parts).map(|_| random.random_range(1000..4000)).collect(),
        None => vec![1, 2, 2, 4],
    };
    let distribution = LogNormal::new(512_f64.ln(), sigma).expect("a finite sigma");
    let lengths: Vec<u64> =
        (0..samples).map(|_| distribution.sample(&mut random).clamp(16.0, 8192.0).round() as u64).collect();
    let costs = lengths.iter().map(|&length| length as f64 * (1.0 + quadratic * length as f64)).collect();
    Draw { costs, lengths, weights }
}

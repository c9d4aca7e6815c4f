//! Iterations with samples of unequal length.

#![allow(clippy::expect_used, dead_code, missing_docs, reason = "tests and benchmarks use different parts")]

use evenstep_rules::{Cut, PassRules};
use proptest::prelude::*;
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

/// Settings of a random cut.
#[derive(Debug, Clone)]
pub struct Case {
    pub costs: Vec<f64>,
    pub lengths: Vec<u64>,
    pub weights: Vec<u64>,
    pub has_limit: bool,
    /// Tokens of `max_tokens` beyond `least` times the longest sample.
    pub room: u64,
    pub is_padded: bool,
    pub least: usize,
    pub passes: usize,
    pub is_equal: bool,
}

impl Case {
    pub fn rules(&self) -> PassRules<'_> {
        let longest = self.lengths.iter().copied().max().unwrap_or(0);
        PassRules {
            lengths: Some(&self.lengths),
            max_tokens: self.has_limit.then_some(longest * self.least as u64 + self.room),
            is_padded: self.is_padded,
            least: self.least,
            passes: self.passes,
            is_equal: self.is_equal,
        }
    }

    pub fn cut(&self) -> Cut {
        Cut::new(&self.costs, &self.weights, &self.rules()).expect("valid rules")
    }

    pub fn tokens(&self, pass: &[usize]) -> u64 {
        let lengths = pass.iter().map(|&position| self.lengths[position]);
        if self.is_padded { pass.len() as u64 * lengths.max().unwrap_or(0) } else { lengths.sum() }
    }
}

/// Random cuts of fewer than this many samples into at most this many parts.
pub fn cases(samples: usize, parts: usize) -> impl Strategy<Value = Case> {
    let lengths = prop_oneof![
        prop::collection::vec(1_u64..100, 0..samples),
        prop::collection::vec(60_u64..100, 0..samples),
        prop::collection::vec(0_u64..3, 0..samples),
        (1_u64..50, 0..samples).prop_map(|(length, samples)| vec![length; samples]),
    ];
    let weights =
        prop::collection::vec(prop_oneof![1 => Just(0_u64), 4 => 1_u64..5, 1 => 1_u64..5000], 1..=parts);
    let weights =
        weights.prop_filter("a positive weight", |weights| weights.iter().any(|&weight| weight > 0));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let settings = (flags, prop_oneof![0_u64..20, 0_u64..300], 1_usize..4, 1_usize..5, 0.0_f64..0.1);
    (lengths, weights, settings).prop_map(|(lengths, weights, (flags, room, least, passes, quadratic))| {
        let (has_limit, is_padded, is_equal, is_unrelated) = flags;
        let cost = |(at, &length): (usize, &u64)| match is_unrelated {
            true => 1.0 + (at * 7919 % 13) as f64,
            false => length as f64 * (1.0 + quadratic * length as f64) + 0.1,
        };
        let costs = lengths.iter().enumerate().map(cost).collect();
        Case { costs, lengths, weights, has_limit, room, is_padded, least, passes, is_equal }
    })
}

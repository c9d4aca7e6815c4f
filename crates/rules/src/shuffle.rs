//! The order of an epoch: a permutation that is evaluated at any position, in constant memory.

use std::num::NonZeroU64;

/// Pairs of rounds of the Feistel network. Four rounds are the theoretical minimum of a strong pseudorandom permutation
/// (Luby and Rackoff, SIAM Journal on Computing, 1988); two more cost little.
const PAIRS: usize = 3;

/// Minimum number of bits of the network. With fewer, some orders of few samples would be more likely than others.
const BITS_MIN: u32 = 6;

/// A pseudorandom permutation of `0..samples` that depends on a seed.
///
/// It is a Feistel network on the smallest number of bits that holds every index; with an odd number, one half has one bit
/// more. An index beyond the samples is encrypted again until it is one of them (cycle walking: Black and Rogaway, CT-RSA
/// 2002). On average this takes fewer than two encryptions, but up to 64 if there are fewer than 32 samples.
///
/// The same samples and seed give the same order on every platform and in every release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shuffle {
    samples: u64,
    left_mask: u64,
    right_bits: u32,
    keys: [[u64; 2]; PAIRS],
}

impl Shuffle {
    /// Creates the permutation of this many samples.
    pub fn new(samples: NonZeroU64, seed: u64) -> Self {
        let samples = samples.get();
        let bits = (u64::BITS - (samples - 1).leading_zeros()).max(BITS_MIN);
        let right_bits = bits / 2;
        let mut state = seed;
        let mut key = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        };
        let keys = std::array::from_fn(|_| [key(), key()]);
        Self { samples, left_mask: (1 << (bits - right_bits)) - 1, right_bits, keys }
    }

    /// Returns the number of samples.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the index of the sample at a position of the epoch; `None` beyond its end.
    pub fn index(&self, position: u64) -> Option<u64> {
        if position >= self.samples {
            return None;
        }
        // The walk ends, at the latest when the cycle returns to the position itself.
        let mut index = self.encrypted(position);
        while index >= self.samples {
            index = self.encrypted(index);
        }
        Some(index)
    }

    fn encrypted(&self, value: u64) -> u64 {
        let right_mask = (1 << self.right_bits) - 1;
        let (mut left, mut right) = (value >> self.right_bits, value & right_mask);
        for [a, b] in self.keys {
            left ^= mix(right ^ a) & self.left_mask;
            right ^= mix(left ^ b) & right_mask;
        }
        left << self.right_bits | right
    }
}

/// Mixes 64 bits: the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(samples: u64, seed: u64) -> Vec<u64> {
        let shuffle = Shuffle::new(NonZeroU64::new(samples).expect("samples"), seed);
        (0..samples).map(|position| shuffle.index(position).expect("a position")).collect()
    }

    #[test]
    fn every_size_is_a_permutation() {
        for samples in (1..=300).chain([4095, 4096, 4097, 100_003]) {
            for seed in [0, 1, u64::MAX] {
                let mut order = order(samples, seed);
                order.sort_unstable();
                assert!(order.iter().copied().eq(0..samples), "{samples} samples, seed {seed}");
            }
        }
    }

    #[test]
    fn indices_of_large_sizes_are_distinct_and_in_range() {
        for samples in [10_000_000, 1 << 32, (1 << 33) + 1, (1 << 63) + 1, u64::MAX] {
            let shuffle = Shuffle::new(NonZeroU64::new(samples).expect("samples"), 7);
            let positions = (0..5000).chain(samples - 5000..samples);
            let mut indices: Vec<u64> = positions.filter_map(|position| shuffle.index(position)).collect();
            indices.sort_unstable();
            indices.dedup();
            assert_eq!(indices.len(), 10_000, "{samples}");
            assert!(indices.iter().all(|&index| index < samples));
            assert_eq!(shuffle.index(samples), None);
            assert_eq!(shuffle.index(u64::MAX), None);
        }
    }

    #[test]
    fn seeds_give_different_orders() {
        let mut orders: Vec<Vec<u64>> = (0..1000).map(|seed| order(20, seed)).collect();
        orders.sort_unstable();
        orders.dedup();
        assert_eq!(orders.len(), 1000);
        let fixed = order(1000, 5).iter().zip(order(1000, 6)).filter(|(a, b)| **a == *b).count();
        assert!(fixed < 10, "{fixed} of 1,000 positions have the same index");
    }

    /// Returns how far counts are from uniform, in standard deviations of chi-square.
    fn deviation(counts: &[u64]) -> f64 {
        let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        let terms = counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected);
        let freedom = (counts.len() - 1) as f64;
        (terms.sum::<f64>() - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn an_order_has_no_structure() {
        const CELLS: usize = 32;
        for (samples, seed) in [(30_000, 1), (32_768, 2), (32_769, 3), (50_000, 4), (65_536, 5), (131_071, 6)]
        {
            let order = order(samples, seed);
            let cell = |value: u64| (value * CELLS as u64 / samples) as usize;
            let mut pairs = vec![0; CELLS * CELLS];
            let mut neighbours = vec![0; CELLS * CELLS];
            let mut differences = vec![0; CELLS * CELLS];
            let mut low_bits = vec![0; CELLS * CELLS];
            for (position, window) in order.windows(2).enumerate() {
                pairs[cell(position as u64) * CELLS + cell(window[0])] += 1;
                neighbours[cell(window[0]) * CELLS + cell(window[1])] += 1;
                let difference = (window[1] + samples - window[0]) % samples;
                differences[(difference * (CELLS * CELLS) as u64 / samples) as usize] += 1;
                low_bits[position % CELLS * CELLS + window[0] as usize % CELLS] += 1;
            }
            let all = [("pairs", pairs), ("neighbours", neighbours), ("differences", differences)];
            for (name, counts) in all.into_iter().chain([("low bits", low_bits)]) {
                let deviation = deviation(&counts);
                assert!(deviation.abs() < 4.5, "{name} of {samples}: {deviation} standard deviations");
            }
        }
    }

    #[test]
    fn every_order_of_few_samples_is_about_equally_likely() {
        for samples in [2, 3, 4] {
            let mut counts = std::collections::BTreeMap::new();
            (0..24_000).for_each(|seed| *counts.entry(order(samples, seed)).or_insert(0.0) += 1.0);
            assert_eq!(counts.len() as u64, (1..=samples).product::<u64>(), "orders of {samples}");
            let (least, most) = counts.values().fold((f64::MAX, 0.0_f64), |(a, b), n| (a.min(*n), b.max(*n)));
            assert!(most < 1.25 * least, "{samples}: {counts:?}");
        }
        for samples in [5, 7, 8, 12, 16] {
            let mut counts = vec![0; (samples * samples) as usize];
            for seed in 0..8000 {
                for (position, index) in order(samples, seed).into_iter().enumerate() {
                    counts[position * samples as usize + index as usize] += 1;
                }
            }
            assert!(deviation(&counts) < 4.5, "{samples}: {counts:?}");
        }
    }

    /// The values are from a second implementation of the definition, in Python.
    #[test]
    fn golden() {
        assert_eq!(order(10, 0), [6, 5, 8, 9, 3, 2, 7, 1, 0, 4]);
        assert_eq!(order(10, 1), [2, 5, 3, 7, 4, 1, 9, 6, 0, 8]);
        let large = Shuffle::new(NonZeroU64::new(10_000_000).expect("samples"), 2026);
        assert_eq!(
            [0, 1, 2, 3].map(|position| large.index(position)),
            [7256425, 5839476, 3632349, 1145051].map(Some)
        );
    }
}

//! The order of an epoch: a permutation that is evaluated at any position, in constant memory.

use std::num::NonZeroU64;

/// Rounds of the Feistel network. Four rounds are the theoretical minimum of a strong pseudorandom permutation (Luby and
/// Rackoff, SIAM J. Comput. 1988); two more cost little.
const ROUNDS: usize = 6;

/// A pseudorandom permutation of `0..samples` that depends on a seed.
///
/// It is a balanced Feistel network on the smallest even number of bits that holds every index. An index beyond the
/// samples is encrypted again until it is one of them (cycle walking: Black and Rogaway, CT-RSA 2002), fewer than four
/// times on average. The same samples and seed give the same order on every platform and in every release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shuffle {
    samples: u64,
    /// Bits of each half.
    half: u32,
    keys: [u64; ROUNDS],
}

impl Shuffle {
    /// Creates the permutation of this many samples.
    pub fn new(samples: NonZeroU64, seed: u64) -> Self {
        let samples = samples.get();
        let bits = u64::BITS - (samples - 1).leading_zeros();
        let mut state = seed;
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        });
        Self { samples, half: bits.div_ceil(2).max(1), keys }
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
        let mask = (1 << self.half) - 1;
        let (mut left, mut right) = (value >> self.half, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half | right
    }
}

/// Mixes 64 bits: the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

//! The order of samples: one seeded global permutation per epoch, and a cursor.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// Position in an epoch. All ranks advance it alike, so that together they use every sample exactly once per
/// epoch.
#[derive(Debug, Clone)]
pub struct Cursor {
    seed: u64,
    epoch: u64,
    position: u64,
    order: Vec<i64>,
}

impl Cursor {
    /// Returns the start of a run over `samples` samples (at least one).
    pub fn new(seed: u64, samples: u64) -> Self {
        Self::at(seed, samples, 0, 0)
    }

    /// Returns a position inside a run.
    pub fn at(seed: u64, samples: u64, epoch: u64, position: u64) -> Self {
        Self { seed, epoch, position, order: permutation(seed, epoch, samples) }
    }

    /// Returns the epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of samples of this epoch that are done.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the number of samples per epoch.
    pub fn samples(&self) -> u64 {
        self.order.len() as u64
    }

    /// Returns the size of the `ahead`-th iteration after this one: the global batch, or the remainder at the
    /// end of an epoch.
    pub fn size(&self, global_batch: u64, ahead: u64) -> u64 {
        let mut position = self.position;
        for _ in 0..ahead {
            position += global_batch.min(self.samples() - position);
            position %= self.samples();
        }
        global_batch.min(self.samples() - position)
    }

    /// Returns the samples `offset .. offset + count` of this iteration.
    pub fn slice(&self, offset: u64, count: u64) -> &[i64] {
        let start = (self.position + offset) as usize;
        &self.order[start..start + count as usize]
    }

    /// Advances by the size of an iteration.
    pub fn advance(&mut self, size: u64) {
        self.position += size;
        if self.position >= self.samples() {
            self.epoch += 1;
            self.position = 0;
            self.order = permutation(self.seed, self.epoch, self.samples());
        }
    }
}

fn permutation(seed: u64, epoch: u64, samples: u64) -> Vec<i64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    // Streams of one seed never overlap, so epochs are independent.
    random.set_stream(epoch);
    let mut order: Vec<i64> = (0..samples as i64).collect();
    order.shuffle(&mut random);
    order
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_sample_comes_exactly_once_an_epoch(samples in 1_u64..400, global_batch in 1_u64..100, seed: u64) {
            let mut cursor = Cursor::new(seed, samples);
            for epoch in 0..3 {
                let mut seen = Vec::new();
                while cursor.epoch() == epoch {
                    let size = cursor.size(global_batch, 0);
                    let half = size / 2;
                    seen.extend_from_slice(cursor.slice(half, size - half));
                    seen.extend_from_slice(cursor.slice(0, half));
                    cursor.advance(size);
                }
                seen.sort_unstable();
                prop_assert_eq!(seen, (0..samples as i64).collect::<Vec<_>>());
            }
        }

        #[test]
        fn announced_sizes_are_the_later_sizes(samples in 1_u64..50, global_batch in 1_u64..60, steps in 0_usize..20) {
            let mut cursor = Cursor::new(1, samples);
            for _ in 0..steps {
                let (next, after) = (cursor.size(global_batch, 1), cursor.size(global_batch, 2));
                cursor.advance(cursor.size(global_batch, 0));
                prop_assert_eq!(cursor.size(global_batch, 0), next);
                prop_assert_eq!(cursor.size(global_batch, 1), after);
            }
        }
    }

    #[test]
    fn epochs_differ_and_a_position_is_found_again() {
        let first = Cursor::new(7, 100);
        let mut second = first.clone();
        second.advance(100);
        assert_ne!(first.slice(0, 100), second.slice(0, 100));
        let again = Cursor::at(7, 100, 1, 40);
        assert_eq!(again.slice(0, 60), second.slice(40, 60));
    }
}

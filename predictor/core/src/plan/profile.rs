//! A short profile at the start of a job: the workers run powers of two up to their caps, so that their batch
//! curves are known early.
//!
//! The sum of all batches is fixed, so the workers alternate. First the workers of even rank compute the size
//! that is measured while the others share the remaining samples, then the reverse. Each size runs twice,
//! because the first iteration at a new size is not used for the curve.

use crate::allocate::even;

/// Maximum number of sizes that are measured, from twice an even share downwards.
const SIZES_MAX: usize = 6;
/// Iterations at each size.
const REPEATS: usize = 2;

/// Maximum number of steps of a profile.
pub const STEPS_MAX: usize = 2 * SIZES_MAX * REPEATS;

/// Returns the steps of a profile: batches by rank for each of the first iterations.
///
/// The result is empty if sizes cannot vary: with a single worker, or with bounds that leave no choice.
pub fn profile(bounds: &[(u64, Option<u64>)], global_batch: u64, quantum: u64) -> Vec<Vec<u64>> {
    let Ok(plain) = even(bounds, global_batch, quantum) else { return Vec::new() };
    let largest = plain.iter().max().map_or(0, |batch| batch.saturating_mul(2));
    let mut size = quantum;
    let mut sizes = Vec::new();
    while size <= largest {
        sizes.push(size);
        size = size.saturating_mul(2);
    }
    let mut steps = Vec::new();
    for &size in sizes.iter().rev().take(SIZES_MAX) {
        for turn in 0..2 {
            let bounded = |(rank, (floor, cap)): (usize, &(u64, Option<u64>))| {
                if rank % 2 == turn {
                    let size = size.max(*floor).min(cap.unwrap_or(u64::MAX));
                    (size, Some(size))
                } else {
                    (*floor, *cap)
                }
            };
            let bounded: Vec<(u64, Option<u64>)> = bounds.iter().enumerate().map(bounded).collect();
            if let Ok(batches) = even(&bounded, global_batch, quantum)
                && !steps.contains(&batches)
            {
                steps.push(batches);
            }
        }
    }
    if steps.len() < 2 {
        return Vec::new();
    }
    steps.into_iter().flat_map(|batches| std::iter::repeat_n(batches, REPEATS)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn workers_take_turns() {
        let steps = profile(&[(1, None), (1, None)], 32, 1);
        assert_eq!(steps.len(), 18);
        let expected = [[16, 16], [16, 16], [8, 24], [8, 24], [24, 8], [24, 8], [4, 28], [4, 28]];
        assert_eq!(&steps[..8], expected.map(Vec::from).as_slice());
        assert_eq!(steps[17], [31, 1]);
        assert_eq!(profile(&[(1, None); 4], 1200, 1).len(), STEPS_MAX);
        assert!(profile(&[(1, None)], 32, 1).is_empty(), "one worker has no choice");
        assert!(profile(&[(16, None), (16, None)], 32, 1).is_empty());
    }

    proptest! {
        #[test]
        fn every_step_is_a_legal_answer(
            workers in prop::collection::vec((0u64..5, prop::option::of(5u64..200)), 1..9), quanta in 1u64..100,
            quantum in 1u64..9
        ) {
            let global_batch = quanta * quantum;
            let steps = profile(&workers, global_batch, quantum);
            prop_assert!(steps.len() <= STEPS_MAX);
            for batches in steps {
                prop_assert_eq!(batches.iter().sum::<u64>(), global_batch);
                for (batch, (floor, cap)) in batches.iter().zip(&workers) {
                    prop_assert!(batch % quantum == 0 && batch >= floor && cap.is_none_or(|cap| *batch <= cap));
                }
            }
        }
    }
}

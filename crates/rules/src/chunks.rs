//! The sequence of chunks: chunks get smaller towards the end of the tail.
//!
//! Guided self-scheduling (Polychronopoulos, Kuck 1987) hands out one worker's share of the remaining samples
//! at a time. Factoring (Hummel, Schonberg, Flynn 1992) hands out half of that, so that a chunk that takes
//! twice as long as the others still ends with them. The last chunks are small, and so is the difference
//! between the workers' finish times.
//!
//! Weighted factoring (Hummel, Schmidt, Uma, Wein 1996) makes larger chunks for faster workers. Here chunks
//! are not assigned to workers, and faster workers claim more of them. Weighting each chunk by the worker
//! that would claim it if all forecasts were exact was tried: steps took 0.5 to 2 % longer, with equal and
//! with unequal workers.

/// Maximum number of chunks of a tail per worker, on average.
pub const CHUNKS_PER_WORKER_MAX: usize = 16;

/// Returns the chunks of a tail of `tail` samples. Their sum is `tail`.
///
/// Each chunk is the number of remaining samples divided by `parts`, at least 1, in multiples of `quantum`.
/// Sizes decrease down to `smallest`. `tail` and `smallest` are multiples of `quantum`, and `smallest` is at
/// least 1. Only a tail that is smaller than `smallest` has a smaller chunk.
pub fn chunks(tail: u64, parts: usize, smallest: u64, quantum: u64) -> Vec<u64> {
    let (mut left, mut chunks) = (tail, Vec::new());
    while left >= smallest.max(1) {
        let part = left / parts as u64 / quantum * quantum;
        let chunk = part.max(smallest);
        chunks.push(chunk);
        left -= chunk;
    }
    if chunks.is_empty() && tail > 0 {
        return vec![tail];
    }
    // The remaining samples are too few for another chunk. They are added to the first chunks, since the last
    // ones must stay small.
    let count = chunks.len().max(1);
    for quantum_more in 0..left / quantum {
        chunks[quantum_more as usize % count] += quantum;
    }
    chunks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden() {
        assert_eq!(chunks(64, 8, 4, 1), [9, 8, 6, 5, 4, 4, 4, 4, 4, 4, 4, 4, 4]);
        assert_eq!(chunks(64, 4, 8, 8), [16, 8, 8, 8, 8, 8, 8]);
        assert_eq!(chunks(3, 2, 4, 1), [3]);
        assert!(chunks(0, 2, 4, 1).is_empty());
    }

    proptest! {
        #[test]
        fn chunks_add_up_and_shrink(tail in 0u64..5000, parts in 1usize..80, least in 1u64..9, quantum in 1u64..9) {
            let (tail, smallest) = (tail * quantum, least * quantum);
            let chunks = chunks(tail, parts, smallest, quantum);
            prop_assert_eq!(chunks.iter().sum::<u64>(), tail);
            prop_assert!(chunks.iter().all(|chunk| chunk % quantum == 0 && *chunk > 0));
            if let Some((last, before)) = chunks.split_last() {
                prop_assert!(before.iter().all(|chunk| *chunk >= smallest));
                prop_assert!(chunks.is_sorted_by(|a, b| a >= b), "{chunks:?}");
                let is_least = *last == smallest || chunks.len() <= (smallest / quantum) as usize;
                prop_assert!(is_least, "{chunks:?}");
            }
        }
    }
}

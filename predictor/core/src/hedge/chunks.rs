//! The sequence of chunks: they shrink as the tail empties.
//!
//! Guided self-scheduling (Polychronopoulos, Kuck 1987) gives out one worker's part of what is left at a time, factoring
//! (Hummel, Schonberg, Flynn 1992) half of that: a chunk that turns out to take twice as long as others still ends with
//! them. The last chunks are small, and so is what the workers' ends differ by. Weighted factoring (Hummel, Schmidt, Uma,
//! Wein 1996) makes larger chunks for the fast; ours are bound to nobody, and the fast claim more of them. Weighing each by
//! who would claim it if all went as forecast was tried: steps were longer by half to two percent, on equal and on
//! unequal workers.

/// Chunks of a tail: each is what is left over `parts`, at least 1, in multiples of `quantum` that fall to `smallest`, itself a
/// multiple and at least 1. Their sum is `tail`, a multiple too; only a tail that is smaller has a smaller chunk.
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
    // What is left is no chunk of its own; at the end, where it counts, they stay small.
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

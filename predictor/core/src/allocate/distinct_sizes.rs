//! Splits into a limited number of different sizes.

use std::collections::BTreeSet;

use super::exact_split::{allocate, even, finish_s};
use super::quantum::Infeasible;
use super::worker::SplitWorker;

/// Splits `total` samples into batches of at most `distinct` different sizes. If the bounds do not allow
/// that, the result has the smallest number of sizes that was found.
///
/// Compilers and kernel tuners process each new size as a new program, so fewer sizes cost less.
///
/// The function computes the exact split with the given quantum, then with the quantum doubled repeatedly. A
/// multiple of a larger quantum is also a multiple of the smaller ones, so few different sizes appear over
/// time, too. The even split is also a candidate. Of the candidates with few enough sizes, the one that
/// finishes first is returned. This is not the optimum over all sets of sizes, but it is never slower than
/// the even split.
///
/// # Errors
/// [`Infeasible`] if the floors add up to more, or the caps to less, than the total.
pub fn allocate_distinct_sizes(
    shares: &[SplitWorker],
    total: u64,
    quantum: u64,
    distinct: usize,
) -> Result<Vec<u64>, Infeasible> {
    let quantum = quantum.max(1);
    let finest = allocate(shares, total, quantum)?;
    let bounds: Vec<(u64, Option<u64>)> = shares.iter().map(|share| (share.floor, share.cap)).collect();
    let grids = std::iter::successors(quantum.checked_mul(2), |grid| grid.checked_mul(2));
    let coarser =
        grids.take_while(|grid| *grid <= total).filter_map(|grid| allocate(shares, total, grid).ok());
    let candidates = std::iter::once(finest).chain(even(&bounds, total, quantum)).chain(coarser);
    let judged = candidates.map(|batches| {
        let sizes = batches.iter().collect::<BTreeSet<_>>().len();
        (sizes.saturating_sub(distinct.max(1)), finish_s(shares, &batches), batches)
    });
    let best = judged.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    Ok(best.map(|(_, _, batches)| batches).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::curve::Curve;

    /// Computed by hand: 96 samples at speeds 1, 1.1, 2, 2.1 give 15.5, 17, 31, 32.5. A quantum of 16 gives
    /// two sizes.
    #[test]
    fn coarser_until_few() {
        let shares = [1.0, 1.1, 2.0, 2.1].map(|speed| SplitWorker::new(Curve::at_speed(speed)));
        assert_eq!(allocate_distinct_sizes(&shares, 96, 1, 4).unwrap(), [15, 17, 31, 33]);
        assert_eq!(allocate_distinct_sizes(&shares, 96, 1, 2).unwrap(), [16, 16, 32, 32]);
        assert_eq!(allocate_distinct_sizes(&shares, 96, 1, 1).unwrap(), [24; 4]);
    }

    proptest! {
        #[test]
        fn few_sizes_if_possible(
            speeds in prop::collection::vec(1.0f64..10.0, 1..9), each in 1u64..200, distinct in 1usize..5
        ) {
            let shares: Vec<SplitWorker> = speeds.iter().map(|speed| SplitWorker::new(Curve::at_speed(*speed))).collect();
            let total = each * shares.len() as u64;
            let batches = allocate_distinct_sizes(&shares, total, 1, distinct).unwrap();
            prop_assert_eq!(batches.iter().sum::<u64>(), total);
            prop_assert!(batches.iter().collect::<BTreeSet<_>>().len() <= distinct, "{:?}", batches);
            let even_s = finish_s(&shares, &vec![each; shares.len()]);
            prop_assert!(finish_s(&shares, &batches) <= even_s);
        }
    }
}

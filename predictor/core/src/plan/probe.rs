//! A probe: shares that differ from the plan on purpose, so that the forms of the batch curves can be distinguished.
//!
//! At one batch, a fixed cost and a cost per sample cannot be distinguished, and shares that follow speeds hardly vary once
//! they are right. In a probe about half of the samples are on workers that get more, and the others get less; in the next
//! one it is the reverse. The contrast of two successive probes does not depend on a drift of the speeds.

use crate::allocate::{Infeasible, SplitWorker, allocate, finish_s};
use crate::curve::Curve;

/// Relative change of a share.
pub const CHANGE: f64 = 0.2;

/// Returns the batches of a probe around planned batches, by rank. `turn` alternates between the two directions. The
/// shares give the bounds.
///
/// # Errors
/// [`Infeasible`] if the bounds do not admit the sum of the batches.
pub fn probe(
    shares: &[SplitWorker],
    batches: &[u64],
    quantum: u64,
    turn: u64,
) -> Result<Vec<u64>, Infeasible> {
    // A share of few quanta must vary too: a worker with a fixed cost seems slow there, so its share would never grow again.
    let limit_s = (1.0 + CHANGE) * finish_s(shares, batches);
    let is_small = |rank: usize| {
        let batch = batches[rank];
        let is_affordable = shares[rank].finish_s(batch.saturating_add(quantum)) <= limit_s;
        batch > 0 && CHANGE * (batch as f64) < quantum as f64 && is_affordable
    };
    let step = |rank| if is_small(rank) { quantum } else { 0 };
    varied(shares, batches, quantum, turn, step).or_else(|_| varied(shares, batches, quantum, turn, |_| 0))
}

/// Returns the batches of a probe in which the workers that get more get at least this number of samples more, by rank.
fn varied(
    shares: &[SplitWorker],
    batches: &[u64],
    quantum: u64,
    turn: u64,
    step: impl Fn(usize) -> u64,
) -> Result<Vec<u64>, Infeasible> {
    let mut ranks: Vec<usize> = (0..batches.len()).collect();
    ranks.sort_by_key(|rank| std::cmp::Reverse(batches[*rank]));
    let mut targets: Vec<SplitWorker> = shares.to_vec();
    for (place, rank) in ranks.into_iter().enumerate() {
        // In the order of sizes: more, less, less, more, and so on. So both groups have about the same sum.
        let is_more = (place % 4 == 1 || place % 4 == 2) == (turn % 2 == 1);
        let factor = if is_more { 1.0 + CHANGE } else { 1.0 - CHANGE };
        let SplitWorker { floor, cap, .. } = shares[rank];
        // A worker without samples stays without.
        let cap = if batches[rank] == 0 { Some(floor) } else { cap };
        let more = if is_more && step(rank) > 0 { batches[rank].saturating_add(step(rank)) } else { 0 };
        let floor = cap.map_or(more, |cap| more.min(cap)).max(floor);
        targets[rank] = SplitWorker {
            floor,
            cap,
            ..SplitWorker::new(Curve::at_speed(factor * batches[rank].max(1) as f64))
        };
    }
    allocate(&targets, batches.iter().sum(), quantum)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares(bounds: &[(u64, Option<u64>)]) -> Vec<SplitWorker> {
        let share = |(floor, cap): &(u64, Option<u64>)| SplitWorker {
            floor: *floor,
            cap: *cap,
            ..SplitWorker::new(Curve::at_speed(1.0))
        };
        bounds.iter().map(share).collect()
    }

    #[test]
    fn half_of_the_samples_are_on_workers_that_get_more() {
        let free = shares(&[(1, None); 4]);
        assert_eq!(probe(&free, &[40, 20, 20, 40], 1, 0), Ok(vec![48, 16, 24, 32]));
        assert_eq!(probe(&free, &[40, 20, 20, 40], 1, 1), Ok(vec![32, 24, 16, 48]));
        assert_eq!(probe(&free[..2], &[80, 20], 1, 0), Ok(vec![86, 14]));
        assert_eq!(probe(&free[..1], &[80], 1, 0), Ok(vec![80]), "one worker has no choice");
        assert_eq!(probe(&free[..3], &[40, 30, 1], 1, 1), Ok(vec![32, 37, 2]), "a small share varies, too");
        assert_eq!(probe(&free, &[1; 4], 1, 0), Ok(vec![1; 4]), "there is no sample to give");
        assert_eq!(probe(&shares(&[(1, Some(40)); 2]), &[40, 40], 1, 0), Ok(vec![40, 40]));
    }

    proptest! {
        #[test]
        fn every_probe_is_a_legal_answer(
            workers in prop::collection::vec((0u64..5, 5u64..200, any::<u64>()), 1..9), quantum in 1u64..9, turn in 0u64..2
        ) {
            let bounds: Vec<(u64, Option<u64>)> =
                workers.iter().map(|(floor, cap, _)| (floor * quantum, Some(cap * quantum))).collect();
            let batches: Vec<u64> =
                workers.iter().map(|(floor, cap, at)| (floor + at % (cap - floor + 1)) * quantum).collect();
            let probed = probe(&shares(&bounds), &batches, quantum, turn).unwrap();
            prop_assert_eq!(probed.iter().sum::<u64>(), batches.iter().sum::<u64>());
            for ((batch, (floor, cap)), planned) in probed.iter().zip(&bounds).zip(&batches) {
                prop_assert!(batch % quantum == 0 && batch >= floor && cap.is_none_or(|cap| *batch <= cap));
                prop_assert!(*planned > 0 || batch == floor);
            }
        }
    }
}

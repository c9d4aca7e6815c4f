use proptest::prelude::*;

use super::*;
use crate::curve::Curve;

proptest! {
    #[test]
    fn equal_speeds_split_evenly(workers in 1usize..40, total in 0u64..5000, quantum in 1u64..17) {
        let total = total - total % quantum;
        let batches = even(&vec![(0, None); workers], total, quantum).unwrap();
        let (low, high) = (batches.iter().min().unwrap(), batches.iter().max().unwrap());
        prop_assert!(high - low <= quantum, "{batches:?}");
    }

    /// Also if all batches up to the saturation point end at the same time.
    #[test]
    fn equal_gpus_split_evenly(workers in 1usize..40, total in 0u64..5000, saturation in 1u64..500) {
        let share = SplitWorker::new(Curve::saturating(1.0, saturation, 0.01));
        let batches = allocate(&vec![share; workers], total, 1).unwrap();
        let (low, high) = (batches.iter().min().unwrap(), batches.iter().max().unwrap());
        prop_assert!(high - low <= 1, "{batches:?}");
    }

    #[test]
    fn the_faster_never_gets_less(speeds in prop::collection::vec(1.0f64..1000.0, 1..40), total in 0u64..100_000) {
        let shares: Vec<SplitWorker> = speeds.iter().map(|speed| SplitWorker::new(Curve::at_speed(*speed))).collect();
        let batches = allocate(&shares, total, 1).unwrap();
        let mut by_speed: Vec<(f64, u64)> = speeds.into_iter().zip(batches).collect();
        by_speed.sort_by(|a, b| a.0.total_cmp(&b.0));
        prop_assert!(by_speed.is_sorted_by_key(|(_, batch)| *batch));
    }

    /// The order of the workers does not matter if their speeds do not tie.
    #[test]
    fn permuting_workers_permutes_the_answer(
        speeds in prop::collection::btree_set(1u32..100_000, 1..20), total in 0u64..10_000, turn in 0usize..20
    ) {
        // Irregular speeds and at least one sample per worker make ties of finish times very rare.
        let share = |speed: &u32| SplitWorker { floor: 1, ..SplitWorker::new(Curve::at_speed(f64::from(*speed).sqrt())) };
        let total = total + speeds.len() as u64;
        let mut shares: Vec<SplitWorker> = speeds.iter().map(share).collect();
        let mut batches = allocate(&shares, total, 1).unwrap();
        let turn = turn % shares.len();
        shares.rotate_left(turn);
        batches.rotate_left(turn);
        prop_assert_eq!(allocate(&shares, total, 1).unwrap(), batches);
    }
}

#[test]
fn paces_one_two_two_four() {
    let shares = [1.0, 2.0, 2.0, 4.0]
        .map(|speed| SplitWorker { floor: 1, ..SplitWorker::new(Curve::at_speed(speed)) });
    assert_eq!(allocate(&shares, 288, 1).unwrap(), [32, 64, 64, 128]);
}

#[test]
fn bounds_that_cannot_hold_the_batch_are_named() {
    let capped = |cap| SplitWorker { cap: Some(cap), ..SplitWorker::new(Curve::at_speed(1.0)) };
    let shares = [capped(10), capped(7)];
    let error = allocate(&shares, 18, 1).unwrap_err();
    assert_eq!((error.total, error.caps), (18, Some(17)));
    assert_eq!(
        error.to_string(),
        "cannot split 18 samples over 2 workers: floors require 0, caps allow 17; change the bounds or global_batch"
    );
    assert!(allocate(&shares, 17, 1).is_ok());
    assert!(allocate(&[], 17, 1).is_err());
}

#[test]
fn large_problems_are_exact_too() {
    let share = |i: u32| SplitWorker {
        floor: 1,
        ..SplitWorker::new(Curve::linear(0.001, 1e-5 * (1.0 + f64::from(i % 97))))
    };
    let shares: Vec<SplitWorker> = (0..10_000).map(share).collect();
    let batches = allocate(&shares, 1_000_000, 1).unwrap();
    assert_eq!(batches.iter().sum::<u64>(), 1_000_000);
    let worst = finish_s(&shares, &batches);
    let next = shares.iter().zip(&batches).map(|(share, batch)| share.finish_s(batch + 1));
    assert!(
        next.fold(f64::INFINITY, f64::min) >= worst,
        "no worker could have relieved the slowest of a sample"
    );
}

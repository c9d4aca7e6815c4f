//! Shares that measure workers without samples.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Rules, Sizes, WorkerOutlook, is_legal, plan};
use crate::allocate::Scenarios;

/// Returns the planned batches with `smallest` samples for each of these workers without samples, by rank. They come from the
/// largest shares, and all others stay. Workers for which no share is large enough are left out.
///
/// If a rule for sizes does not allow that, all workers are planned again. `None` if there is no such split.
pub fn measure(
    workers: &[WorkerOutlook],
    planned: &[u64],
    idle: &[usize],
    smallest: u64,
    rules: &Rules,
) -> Option<Vec<u64>> {
    let is_size = |batch: &u64| match &rules.sizes {
        Sizes::Allowed(sizes) => sizes.contains(batch),
        _ => true,
    };
    let mut batches = planned.to_vec();
    let mut largest: BinaryHeap<(u64, Reverse<usize>)> =
        planned.iter().enumerate().map(|(rank, batch)| (*batch, Reverse(rank))).collect();
    for rank in idle {
        while let Some((batch, Reverse(from))) = largest.pop() {
            let rest = batch.checked_sub(smallest).filter(|rest| *rest >= workers[from].floor);
            if let Some(rest) = rest.filter(is_size) {
                (batches[from], batches[*rank]) = (rest, smallest);
                largest.push((rest, Reverse(from)));
                break;
            }
        }
    }
    if batches != planned && is_legal(&batches, workers, rules) {
        return Some(batches);
    }
    let mut tried = workers.to_vec();
    for rank in idle {
        (tried[*rank].floor, tried[*rank].cap) = (smallest, Some(smallest));
    }
    Some(plan(&tried, &Scenarios::default(), None, rules).ok()?.batches)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::curve::Curve;
    use crate::forecast::Forecast;
    use crate::plan::Measured;

    fn at(speed: f64, floor: u64) -> WorkerOutlook {
        let forecast = Forecast { speed, lower: speed, upper: speed };
        let measured = Measured { forecast, curve: Curve::at_speed(speed), largest: 1000 };
        WorkerOutlook { measured: Some(measured), floor, cap: None }
    }

    fn rules(global_batch: u64, quantum: u64, sizes: Sizes) -> Rules {
        Rules { global_batch, quantum, sizes, min_gain: 0.02, iterations: 1.0 }
    }

    #[test]
    fn samples_come_from_the_largest_shares() {
        let workers = [at(1.0, 0), at(9.0, 0), at(9.0, 0), at(1.0, 0)];
        let any = rules(100, 1, Sizes::Any);
        assert_eq!(measure(&workers, &[0, 51, 49, 0], &[0, 3], 1, &any), Some(vec![1, 49, 49, 1]));
        let sizes = rules(128, 1, Sizes::Allowed(vec![0, 16, 48, 64]));
        assert_eq!(measure(&workers, &[0, 64, 64, 0], &[0], 16, &sizes), Some(vec![16, 48, 64, 0]));
        // Two sizes: the worker gets 2 samples, so the others need equal ones.
        let distinct = rules(98, 2, Sizes::Distinct(2));
        assert_eq!(measure(&workers[..3], &[0, 50, 48], &[0], 2, &distinct), Some(vec![2, 48, 48]));
        let floors = [at(1.0, 0), at(9.0, 8), at(9.0, 8)];
        assert_eq!(measure(&floors, &[0, 8, 8], &[0], 1, &rules(16, 1, Sizes::Any)), None);
    }

    proptest! {
        #[test]
        fn only_shares_that_give_change(
            shares in prop::collection::vec((0u64..3, 0u64..60, any::<bool>()), 2..9), quantum in 1u64..9,
        ) {
            let planned: Vec<u64> = shares
                .iter()
                .map(|(floor, more, is_idle)| if *is_idle { 0 } else { (floor + more) * quantum })
                .collect();
            let idle: Vec<usize> = (0..shares.len()).filter(|rank| planned[*rank] == 0).collect();
            prop_assume!(!idle.is_empty());
            let workers: Vec<WorkerOutlook> = shares
                .iter()
                .map(|(floor, _, is_idle)| at(1.0, if *is_idle { 0 } else { floor * quantum }))
                .collect();
            let rules = rules(planned.iter().sum(), quantum, Sizes::Any);
            let spare = |rank: usize| (planned[rank] - workers[rank].floor) / quantum;
            let all: u64 = (0..shares.len()).map(spare).sum();
            let Some(batches) = measure(&workers, &planned, &idle, quantum, &rules) else {
                prop_assert_eq!(all, 0, "{:?}", planned);
                return Ok(());
            };
            prop_assert!(is_legal(&batches, &workers, &rules));
            let measured = idle.iter().filter(|rank| batches[**rank] > 0).count() as u64;
            prop_assert_eq!(measured, all.min(idle.len() as u64));
            let most = planned.iter().zip(&batches).filter(|(planned, _)| **planned > 0);
            prop_assert!(most.clone().all(|(planned, batch)| batch <= planned));
            let largest = most.clone().map(|(_, batch)| *batch).max().unwrap_or(0);
            let gives = most.filter(|(planned, batch)| batch < planned).map(|(_, batch)| *batch);
            prop_assert!(idle.len() != 1 || gives.clone().all(|batch| batch + quantum >= largest || all < 2));
        }
    }
}

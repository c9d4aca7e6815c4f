//! Exact proportions in whole quanta.

use std::cmp::Reverse;

/// Splits `size` in proportion to `weights` into whole quanta by largest remainders (Hamilton); ties go to the
/// lower rank. The samples below one quantum go to the next rank in the same order. Without a positive weight
/// the split is even.
///
/// It uses integers only, so all ranks compute the same result. No weights give no shares.
pub fn apportion(size: u64, weights: &[u64], quantum: u64) -> Vec<u64> {
    if weights.is_empty() {
        return Vec::new();
    }
    let whole: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    if whole == 0 {
        return apportion(size, &vec![1; weights.len()], quantum);
    }
    let quantum = quantum.max(1);
    let quanta = size / quantum;
    let scaled = |weight: u64| u128::from(quanta) * u128::from(weight);
    let mut batches: Vec<u64> =
        weights.iter().map(|&weight| (scaled(weight) / whole) as u64 * quantum).collect();
    let mut order: Vec<usize> = (0..weights.len()).filter(|&rank| weights[rank] > 0).collect();
    order.sort_by_key(|&rank| (Reverse(scaled(weights[rank]) % whole), rank));
    let mut left = size - batches.iter().sum::<u64>();
    // Fewer quanta are left than ranks with a remainder, so one pass is enough.
    for rank in order {
        let more = left.min(quantum);
        batches[rank] += more;
        left -= more;
    }
    batches
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden() {
        assert_eq!(apportion(16, &[1, 1, 1], 1), [6, 5, 5]);
        assert_eq!(apportion(100, &[24, 12, 16], 1), [46, 23, 31]);
        assert_eq!(apportion(20, &[1, 1, 1], 8), [8, 8, 4]);
        assert_eq!(apportion(3, &[0, 0], 1), [2, 1]);
        assert!(apportion(3, &[], 1).is_empty());
    }

    proptest! {
        #[test]
        fn a_split_is_exact_in_quanta_and_in_proportion(
            size in 0_u64..5000, weights in prop::collection::vec(0_u64..500, 1..9), quantum in 1_u64..17,
        ) {
            let batches = apportion(size, &weights, quantum);
            prop_assert_eq!(batches.iter().sum::<u64>(), size);
            prop_assert!(batches.iter().filter(|&batch| batch % quantum != 0).count() <= 1, "{batches:?}");
            let whole: u64 = weights.iter().sum();
            for (batch, weight) in batches.iter().zip(&weights).filter(|_| whole > 0) {
                let exact = (size / quantum * quantum) as f64 * *weight as f64 / whole as f64;
                prop_assert!((*batch as f64 - exact).abs() < 1.0 + quantum as f64, "{batches:?}");
                prop_assert!(*batch == 0 || *weight > 0, "{batches:?}");
            }
        }
    }
}

//! Work on many items on all cores. Results do not depend on the number of cores: no item depends on another.

use std::collections::BTreeMap;

use rayon::prelude::*;

/// Minimum number of items that several cores share. Fewer take less time than waking other threads.
const ITEMS_MIN: usize = 256;

/// Returns the results of `work` in the order of the items.
pub fn map<'a, T: Sync, R: Send>(items: &'a [T], work: impl Fn(&'a T) -> R + Sync + Send) -> Vec<R> {
    if items.len() < ITEMS_MIN {
        items.iter().map(work).collect()
    } else {
        items.par_iter().map(work).collect()
    }
}

/// Returns the results of `work`, which takes milliseconds, in the order of the items.
pub fn map_large<'a, T: Sync, R: Send>(items: &'a [T], work: impl Fn(&'a T) -> R + Sync + Send) -> Vec<R> {
    if items.len() < 2 { items.iter().map(work).collect() } else { items.par_iter().map(work).collect() }
}

/// Calls `work` with each of these values and its argument, and returns its results in the order of the keys. Keys without
/// a value are skipped.
pub fn update<'a, K: Ord + Sync + Send, V: Send, A: Sync, R: Send>(
    values: &mut BTreeMap<K, V>,
    arguments: &BTreeMap<&'a K, A>,
    work: impl Fn(&mut V, &A) -> R + Sync + Send,
) -> Vec<(&'a K, R)> {
    if arguments.len() < ITEMS_MIN {
        let result = |(key, argument): (&&'a K, &A)| Some((*key, work(values.get_mut(*key)?, argument)));
        return arguments.iter().filter_map(result).collect();
    }
    let result = |(key, value): (&K, &mut V)| {
        let (key, argument) = arguments.get_key_value(key)?;
        Some((*key, work(value, argument)))
    };
    values.par_iter_mut().filter_map(result).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_item_is_worked_on_once(items in 0usize..3 * ITEMS_MIN, missing in 1usize..5) {
            let numbers: Vec<usize> = (0..items).collect();
            prop_assert_eq!(map(&numbers, |number| 2 * number), (0..items).map(|number| 2 * number).collect::<Vec<_>>());
            let mut values: BTreeMap<usize, usize> = numbers.iter().map(|number| (*number, 0)).collect();
            let arguments: BTreeMap<&usize, usize> =
                numbers.iter().filter(|number| *number % missing == 0).map(|number| (number, number + 1)).collect();
            values.remove(&0);
            let before = update(&mut values, &arguments, |value, argument| std::mem::replace(value, *argument));
            prop_assert!(before.iter().map(|(key, _)| **key).eq(values.keys().copied().filter(|key| key % missing == 0)));
            for (number, value) in values {
                prop_assert_eq!(value, if number % missing == 0 { number + 1 } else { 0 });
            }
        }
    }
}

//! Work on many items on all cores. Results do not depend on the number of cores: no item depends on another.

use std::collections::BTreeMap;

use rayon::prelude::*;

/// Minimum number of items that several cores share. Fewer take less time than waking other threads.
const ITEMS_MIN: usize = 256;

/// Turns of many items: a bounded number of them have theirs at once, and every item has one as often as the others.
#[derive(Debug, Clone, Copy)]
pub struct Turns {
    period: usize,
    phase: usize,
}

impl Turns {
    /// Turns of `items`, at most `most` of them at once, at this step.
    pub fn new(items: usize, most: usize, step: u64) -> Self {
        let period = items.div_ceil(most).max(1);
        Self { period, phase: (step % period as u64) as usize }
    }

    /// Whether an item has its turn.
    pub fn has(self, item: usize) -> bool {
        item % self.period == self.phase
    }
}

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

/// Calls `work` with each of these values and its argument, and returns its results in the order of the keys. The arguments are in
/// ascending order of their keys. Keys without a value are skipped.
pub fn update<'a, K: Ord + Sync + Send, V: Send, A: Sync, R: Send>(
    values: &mut BTreeMap<K, V>,
    arguments: &[(&'a K, A)],
    work: impl Fn(&mut V, &A) -> R + Sync + Send,
) -> Vec<(&'a K, R)> {
    debug_assert!(arguments.is_sorted_by(|one, other| one.0 < other.0), "arguments in order of their keys");
    if arguments.len() < ITEMS_MIN {
        let result = |(key, argument): &(&'a K, A)| Some((*key, work(values.get_mut(*key)?, argument)));
        return arguments.iter().filter_map(result).collect();
    }
    // One pass over both takes less time than finding each key.
    let mut rest = values.iter_mut().peekable();
    let find = |(key, argument)| {
        while rest.next_if(|(other, _)| *other < key).is_some() {}
        rest.next_if(|(other, _)| *other == key).map(|(_, value)| (key, value, argument))
    };
    let mut found: Vec<(&'a K, &mut V, &A)> =
        arguments.iter().map(|(key, argument)| (*key, argument)).filter_map(find).collect();
    found.par_iter_mut().map(|(key, value, argument)| (*key, work(value, argument))).collect()
}

/// Returns the value of each of these keys, which are in ascending order.
pub fn find<'v, K: Ord, V>(values: &'v BTreeMap<K, V>, keys: &[&K]) -> Vec<Option<&'v V>> {
    if keys.len() < ITEMS_MIN {
        return keys.iter().map(|key| values.get(*key)).collect();
    }
    let mut rest = values.iter().peekable();
    let find = |key: &&K| {
        while rest.next_if(|(other, _)| *other < *key).is_some() {}
        rest.next_if(|(other, _)| *other == *key).map(|(_, value)| value)
    };
    keys.iter().map(find).collect()
}

/// Inserts a new value for each of these keys that has none. The keys are in ascending order.
pub fn insert<'a, K: Ord + Clone + 'a, V>(
    values: &mut BTreeMap<K, V>,
    keys: impl Iterator<Item = &'a K>,
    new: impl Fn() -> V,
) {
    let keys: Vec<&K> = keys.collect();
    let found = find(values, &keys);
    let missing: Vec<K> = keys
        .into_iter()
        .zip(found)
        .filter(|(_, found)| found.is_none())
        .map(|(key, _)| key.clone())
        .collect();
    values.extend(missing.into_iter().map(|key| (key, new())));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_item_has_its_turn(items in 1usize..5000, most in 1usize..2000, first in any::<u32>()) {
            let period = items.div_ceil(most);
            let mut counts = vec![0; items];
            for step in 0..period as u64 {
                let turns = Turns::new(items, most, u64::from(first) + step);
                let now: Vec<usize> = (0..items).filter(|item| turns.has(*item)).collect();
                prop_assert!(now.len() <= most);
                now.iter().for_each(|item| counts[*item] += 1);
            }
            prop_assert!(counts.iter().all(|count| *count == 1));
        }

        #[test]
        fn every_item_is_worked_on_once(items in 0usize..3 * ITEMS_MIN, missing in 1usize..5) {
            let numbers: Vec<usize> = (0..items).collect();
            prop_assert_eq!(map(&numbers, |number| 2 * number), (0..items).map(|number| 2 * number).collect::<Vec<_>>());
            let mut values: BTreeMap<usize, usize> = numbers.iter().map(|number| (*number, 0)).collect();
            let arguments: Vec<(&usize, usize)> =
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

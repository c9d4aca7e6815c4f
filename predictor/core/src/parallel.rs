//! Work on many items on all cores. Results do not depend on the number of cores: no item depends on another.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use rayon::prelude::*;

/// Minimum number of items that several cores share. Fewer take less time than waking other threads.
pub const ITEMS_MIN: usize = 256;

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

/// Returns the value of each of these keys, which are in ascending order.
pub fn find<'v, K: Ord, V>(values: &'v BTreeMap<K, V>, keys: &[&K]) -> Vec<Option<&'v V>> {
    if keys.len() < ITEMS_MIN {
        return keys.iter().map(|key| values.get(*key)).collect();
    }
    // One pass over both takes less time than finding each key.
    let mut rest = values.iter();
    let mut next = rest.next();
    let find = |key: &&K| {
        while let Some((other, value)) = next {
            match other.cmp(key) {
                Ordering::Greater => break,
                found => {
                    next = rest.next();
                    if found == Ordering::Equal {
                        return Some(value);
                    }
                }
            }
        }
        None
    };
    keys.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::shared::SharedMap;

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
            let mut values = SharedMap::default();
            // Positions differ from the order of the keys.
            numbers.iter().rev().for_each(|number| values.insert(*number, 0));
            let keys: Vec<&usize> = numbers.iter().filter(|number| *number % missing == 0).collect();
            let more = items + 5;
            let all: Vec<&usize> = keys.iter().copied().chain([&more]).collect();
            prop_assert!(values.find(&all).iter().map(|found| found.copied()).eq(keys.iter().map(|_| Some(0)).chain([None])));
            let positions = values.positions(&all, || 7);
            let arguments: Vec<usize> = all.iter().map(|number| *number + 1).collect();
            let copy = values.clone();
            let before = values.update(&positions, &arguments, |value, argument| std::mem::replace(value, *argument));
            prop_assert!(before.into_iter().eq(keys.iter().map(|_| 0).chain([7])));
            for (number, value) in values {
                prop_assert_eq!(*value, if number % missing == 0 || number == more { number + 1 } else { 0 });
            }
            prop_assert!(copy.values().filter(|value| **value != 0).eq([&7]), "a copy does not change");
        }
    }
}

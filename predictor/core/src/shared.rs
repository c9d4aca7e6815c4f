//! Maps of values that copies of the map share until one of them changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::parallel::{self, ITEMS_MIN};

/// A map whose copies share keys and values: a copy takes one pointer per key. A key keeps its position, so that many keys are
/// found once for several passes over their values.
#[derive(Debug, Clone)]
pub struct SharedMap<K, V> {
    positions: Arc<BTreeMap<K, usize>>,
    values: Vec<Arc<V>>,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self { positions: Arc::default(), values: Vec::new() }
    }
}

impl<K: Ord, V> SharedMap<K, V> {
    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether the map has this key.
    pub fn contains_key(&self, key: &K) -> bool {
        self.positions.contains_key(key)
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        Some(self.at(*self.positions.get(key)?))
    }

    /// Returns the value at a position.
    pub fn at(&self, position: usize) -> &V {
        &self.values[position]
    }

    /// Returns the value of each of these keys, which are in ascending order.
    pub fn find(&self, keys: &[&K]) -> Vec<Option<&V>> {
        let found = parallel::find(&self.positions, keys).into_iter();
        found.map(|position| Some(self.at(*position?))).collect()
    }

    /// Returns the keys, in ascending order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.positions.keys()
    }

    /// Returns the values, in ascending order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.positions.values().map(|position| self.at(*position))
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// Returns the value of a key for a change.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        Some(Arc::make_mut(&mut self.values[*self.positions.get(key)?]))
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: K, value: V) {
        match self.positions.get(&key) {
            Some(position) => self.values[*position] = Arc::new(value),
            None => {
                Arc::make_mut(&mut self.positions).insert(key, self.values.len());
                self.values.push(Arc::new(value));
            }
        }
    }

    /// Returns the positions of these keys, which are in ascending order. Keys without a value get a new one.
    pub fn positions(&mut self, keys: &[&K], new: impl Fn() -> V) -> Vec<usize> {
        let found: Vec<_> =
            parallel::find(&self.positions, keys).into_iter().map(Option::<&_>::copied).collect();
        let position = |(key, found): (&&K, Option<usize>)| {
            found.unwrap_or_else(|| {
                self.insert((*key).clone(), new());
                self.len() - 1
            })
        };
        keys.iter().zip(found).map(position).collect()
    }
}

impl<K: Sync, V: Clone + Send + Sync> SharedMap<K, V> {
    /// Calls `work` with the values at these positions, each at most once, and their arguments. Returns its results in this order.
    pub fn update<A: Sync, R: Send>(
        &mut self,
        positions: &[usize],
        arguments: &[A],
        work: impl Fn(&mut V, &A) -> R + Sync + Send,
    ) -> Vec<R> {
        let given = positions.iter().zip(arguments);
        if positions.len() < ITEMS_MIN {
            return given
                .map(|(at, argument)| work(Arc::make_mut(&mut self.values[*at]), argument))
                .collect();
        }
        let mut values: Vec<Option<&mut Arc<V>>> = self.values.iter_mut().map(Some).collect();
        let taken = given.filter_map(|(at, argument)| Some((values[*at].take()?, argument)));
        let mut taken: Vec<(&mut Arc<V>, &A)> = taken.collect();
        taken.par_iter_mut().map(|(value, argument)| work(Arc::make_mut(value), argument)).collect()
    }
}

impl<K: Ord + Clone, V> IntoIterator for SharedMap<K, V> {
    type Item = (K, Arc<V>);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        let item = |(key, position): (&K, &usize)| (key.clone(), self.values[*position].clone());
        self.positions.iter().map(item).collect::<Vec<_>>().into_iter()
    }
}

/// Writes the map like one of plain values.
impl<K: Ord + Serialize, V: Serialize> Serialize for SharedMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.keys().zip(self.values()))
    }
}

/// Reads a map of plain values.
impl<'de, K: Ord + Clone + Deserialize<'de>, V: Clone + Deserialize<'de>> Deserialize<'de>
    for SharedMap<K, V>
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut map = Self::default();
        BTreeMap::<K, V>::deserialize(deserializer)?
            .into_iter()
            .for_each(|(key, value)| map.insert(key, value));
        Ok(map)
    }
}

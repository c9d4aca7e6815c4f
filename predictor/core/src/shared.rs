//! Maps of values that copies of the map share until one of them changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A map whose copies share values: a copy takes one pointer per key.
pub type SharedMap<K, V> = BTreeMap<K, Arc<V>>;

/// Writes the map like one of plain values.
pub fn serialize<K: Serialize, V: Serialize, S: Serializer>(
    map: &SharedMap<K, V>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(map.iter().map(|(key, value)| (key, &**value)))
}

/// Reads a map of plain values.
pub fn deserialize<'de, K: Ord + Deserialize<'de>, V: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<SharedMap<K, V>, D::Error> {
    let map = BTreeMap::<K, V>::deserialize(deserializer)?;
    Ok(map.into_iter().map(|(key, value)| (key, Arc::new(value))).collect())
}

//! An append-only list in the store, with many writers and readers.

use std::time::Duration;

use evenstep_c10d::{Result, Store};

/// An announced entry is written within this time, or its writer has died.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);

/// Appends an entry.
///
/// # Errors
/// The store is unreachable.
pub fn append(store: &Store, name: &str, entry: &[u8]) -> Result<()> {
    let number = store.add(&format!("{name}/count"), 1)?;
    store.set(&format!("{name}/{number}"), entry)
}

/// Returns the number of announced entries.
///
/// # Errors
/// The store is unreachable.
pub fn count(store: &Store, name: &str) -> Result<i64> {
    store.add(&format!("{name}/count"), 0)
}

/// A reader's position in a list.
#[derive(Debug)]
pub struct Reader {
    name: String,
    seen: i64,
    /// Entries that were announced but not written at the last read.
    unwritten: Vec<i64>,
}

impl Reader {
    /// Creates a reader at the start of the list.
    pub fn new(name: String) -> Self {
        Self { name, seen: 0, unwritten: Vec::new() }
    }

    /// Returns the entries since the last call, in order, except for entries that were announced long before
    /// they were written.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn new_entries(&mut self, store: &Store) -> Result<Vec<Vec<u8>>> {
        let count = count(store, &self.name)?;
        self.unwritten.extend(self.seen + 1..=count);
        self.seen = count;
        let mut entries = Vec::new();
        for number in std::mem::take(&mut self.unwritten) {
            let key = format!("{}/{number}", self.name);
            if store.check(&key)? {
                entries.push(store.get(&key, WRITTEN_WITHIN)?);
            } else {
                self.unwritten.push(number);
            }
        }
        Ok(entries)
    }
}

/// Returns the name of the list of workers that arrived in a round.
pub fn arrivals_name(round: u64) -> String {
    format!("round/{round}/arrivals")
}

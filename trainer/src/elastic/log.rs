//! A list in the store that many append to and everybody reads.

use std::time::Duration;

use evenstep_c10d::{Result, Store};

/// An entry that was announced is written at once after it, or never: whoever announced it died in between.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);

/// Appends an entry.
///
/// # Errors
/// The store is gone.
pub fn append(store: &Store, name: &str, entry: &[u8]) -> Result<()> {
    let number = store.add(&format!("{name}/count"), 1)?;
    store.set(&format!("{name}/{number}"), entry)
}

/// How many entries were announced.
///
/// # Errors
/// The store is gone.
pub fn count(store: &Store, name: &str) -> Result<i64> {
    store.add(&format!("{name}/count"), 0)
}

/// A reader's place in a list.
#[derive(Debug)]
pub struct Reader {
    name: String,
    seen: i64,
    /// Announced and not yet written when last looked at.
    unwritten: Vec<i64>,
}

impl Reader {
    /// Reads from the begin.
    pub fn new(name: String) -> Self {
        Self { name, seen: 0, unwritten: Vec::new() }
    }

    /// The entries since the last call, in order but for those that were announced long before they were written.
    ///
    /// # Errors
    /// The store is gone.
    pub fn news(&mut self, store: &Store) -> Result<Vec<Vec<u8>>> {
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

/// The list of who came to a round.
pub fn arrivals_name(round: u64) -> String {
    format!("round/{round}/arrivals")
}

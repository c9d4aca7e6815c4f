//! Readers of the processes that request `/sample`.

/// Maximum number of readers, as each client process has its own windows. The least recently used reader is
/// dropped.
pub(crate) const READERS_MAX: usize = 64;

use evenstep_sensors::GpuId;

/// A process and, if requested, a GPU. Each pair has its own windows, so that clients do not shorten each
/// other's windows.
pub(crate) type ReaderKey = (u32, Option<GpuId>);

/// Readers by key.
#[derive(Debug)]
pub(crate) struct Readers<T> {
    /// Least recently used first.
    readers: Vec<(ReaderKey, T)>,
}

impl<T> Default for Readers<T> {
    fn default() -> Self {
        Self { readers: Vec::new() }
    }
}

impl<T> Readers<T> {
    /// Removes and returns a reader.
    pub(crate) fn take(&mut self, key: &ReaderKey) -> Option<T> {
        let at = self.readers.iter().position(|(other, _)| other == key)?;
        Some(self.readers.remove(at).1)
    }

    /// Adds a reader, or replaces the one with the same key.
    pub(crate) fn put(&mut self, key: ReaderKey, reader: T) {
        self.take(&key);
        if self.readers.len() >= READERS_MAX {
            self.readers.remove(0);
        }
        self.readers.push((key, reader));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_reader_is_dropped() {
        let mut readers = Readers::default();
        for pid in 0..READERS_MAX as u32 {
            readers.put((pid, None), pid);
        }
        readers.put((0, None), 0);
        readers.put((1000, None), 1000);
        assert_eq!((readers.take(&(1, None)), readers.take(&(0, None))), (None, Some(0)));
        assert_eq!(readers.readers.len(), READERS_MAX - 1);
    }
}

//! The list of sampled processes.

/// Maximum number of sampled processes. If the list is full, the least recently requested process is removed.
pub const WATCHED_MAX: usize = 64;

/// Processes that samples include: those of `--watch-pid` and those requested through `/sample`.
#[derive(Debug, Clone, Default)]
pub struct WatchList {
    /// Least recently requested first.
    pids: Vec<u32>,
}

impl WatchList {
    /// Adds `pid`, or moves it to the end of the list.
    pub fn watch(&mut self, pid: u32) {
        self.remove(pid);
        if self.pids.len() >= WATCHED_MAX {
            let dropped = self.pids.remove(0);
            tracing::warn!(
                dropped,
                "more than {WATCHED_MAX} watched processes; stopped watching the least recently requested one"
            );
        }
        self.pids.push(pid);
    }

    /// Removes `pid`.
    pub fn remove(&mut self, pid: u32) {
        self.pids.retain(|watched| *watched != pid);
    }

    /// Whether `pid` is in the list.
    pub fn contains(&self, pid: u32) -> bool {
        self.pids.contains(&pid)
    }

    /// Returns all process ids.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.pids.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_process_is_evicted() {
        let mut watch = WatchList::default();
        for pid in 0..WATCHED_MAX as u32 {
            watch.watch(pid);
        }
        watch.watch(0);
        watch.watch(1000);
        assert!(watch.contains(0) && !watch.contains(1) && watch.contains(1000));
        assert_eq!(watch.pids().count(), WATCHED_MAX);
    }
}

//! The list of sampled processes.

use std::time::{Duration, Instant};

/// Maximum number of configured processes, and of requested ones.
pub const WATCHED_MAX: usize = 64;

/// Time for which a requested process stays in the list after its last request.
const REQUESTED_FOR: Duration = Duration::from_secs(3600);

/// Processes that samples include: those of `--watch-pid` and those requested through `/sample`.
///
/// Any local user can request a process. Requests never remove a configured process. If the list of requested
/// processes is full, the least recently requested one is removed.
#[derive(Debug, Clone, Default)]
pub struct WatchList {
    configured: Vec<u32>,
    /// With the time of the last request, least recently requested first.
    requested: Vec<(u32, Instant)>,
}

impl WatchList {
    /// Creates a list of configured processes.
    pub fn new(configured: Vec<u32>) -> Self {
        Self { configured, requested: Vec::new() }
    }

    /// Adds a requested process, or moves it to the end of the list.
    pub fn request(&mut self, pid: u32, now: Instant) {
        if self.configured.contains(&pid) {
            return;
        }
        self.requested.retain(|(requested, _)| *requested != pid);
        if self.requested.len() >= WATCHED_MAX {
            let (dropped, _) = self.requested.remove(0);
            tracing::debug!(dropped, "stopped watching the least recently requested process");
        }
        self.requested.push((pid, now));
    }

    /// Removes requested processes whose last request is too old.
    pub fn expire(&mut self, now: Instant) {
        self.requested.retain(|(_, at)| now.saturating_duration_since(*at) < REQUESTED_FOR);
    }

    /// Removes a process.
    pub fn remove(&mut self, pid: u32) {
        self.configured.retain(|configured| *configured != pid);
        self.requested.retain(|(requested, _)| *requested != pid);
    }

    /// Whether a process is in the list.
    pub fn contains(&self, pid: u32) -> bool {
        self.pids().any(|watched| watched == pid)
    }

    /// Returns all process ids.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.configured.iter().copied().chain(self.requested.iter().map(|(pid, _)| *pid))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The list holds the configured processes, and the newest requested ones that have not expired.
        #[test]
        fn the_most_recently_requested_processes_are_watched(
            configured in prop::collection::btree_set(0_u32..100, 0..10),
            requests in prop::collection::vec((0_u32..200, 0_u64..100), 0..400),
        ) {
            let mut watch = WatchList::new(configured.iter().copied().collect());
            let (start, mut now_s) = (Instant::now(), 0);
            let mut last = Vec::<(u32, u64)>::new();
            for (pid, pause_s) in requests {
                now_s += pause_s;
                watch.request(pid, start + Duration::from_secs(now_s));
                last.retain(|(other, _)| *other != pid);
                last.push((pid, now_s));
            }
            watch.expire(start + Duration::from_secs(now_s));
            let requested = last.iter().rev().filter(|(pid, _)| !configured.contains(pid)).take(WATCHED_MAX);
            let recent = requested.filter(|(_, at_s)| now_s - at_s < REQUESTED_FOR.as_secs());
            let expected: BTreeSet<u32> = recent.map(|(pid, _)| *pid).chain(configured.clone()).collect();
            prop_assert_eq!(watch.pids().collect::<BTreeSet<u32>>(), expected);
        }
    }
}

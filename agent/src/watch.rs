//! Which processes are watched.

/// Processes that are watched, at most; beyond, the one that was asked for longest ago makes room.
pub const WATCHED_MAX: usize = 64;

/// The processes that samples include: those of `--watch-pid` and those that somebody asked `/sample` for.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    /// The one asked for longest ago first.
    pids: Vec<u32>,
}

impl Watch {
    /// Watches `pid` from now on.
    pub fn ask(&mut self, pid: u32) {
        self.remove(pid);
        if self.pids.len() >= WATCHED_MAX {
            let dropped = self.pids.remove(0);
            tracing::warn!(dropped, "more than {WATCHED_MAX} processes to watch");
        }
        self.pids.push(pid);
    }

    /// Watches `pid` no longer.
    pub fn remove(&mut self, pid: u32) {
        self.pids.retain(|watched| *watched != pid);
    }

    /// Whether `pid` is watched.
    pub fn contains(&self, pid: u32) -> bool {
        self.pids.contains(&pid)
    }

    /// All of them.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.pids.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_asked_for_longest_ago_makes_room() {
        let mut watch = Watch::default();
        for pid in 0..WATCHED_MAX as u32 {
            watch.ask(pid);
        }
        watch.ask(0);
        watch.ask(1000);
        assert!(watch.contains(0) && !watch.contains(1) && watch.contains(1000));
        assert_eq!(watch.pids().count(), WATCHED_MAX);
    }
}

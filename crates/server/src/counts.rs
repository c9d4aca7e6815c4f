//! Counts of connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of a server's connections.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    open: AtomicU64,
    refused: AtomicU64,
}

impl Connections {
    /// Number of open connections.
    pub fn open(&self) -> u64 {
        self.0.open.load(Ordering::Relaxed)
    }

    /// Number of connections that were closed at once because a limit was reached.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn set_open(&self, open: usize) {
        self.0.open.store(open as u64, Ordering::Relaxed);
    }

    pub(crate) fn refuse(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }
}

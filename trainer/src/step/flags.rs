//! Signals to a worker process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Signals that this worker received.
#[derive(Debug, Clone, Default)]
pub struct StopFlags {
    stop: Arc<AtomicBool>,
    leave: Arc<AtomicBool>,
}

impl StopFlags {
    /// Listens for SIGINT, which stops the run because it reaches all workers of a terminal at once, and for
    /// SIGTERM. SIGTERM stops a run too, but a worker of an elastic run only leaves.
    ///
    /// # Errors
    /// The operating system rejects a signal handler.
    pub fn listen(elastic: bool) -> Result<Self> {
        let flags = Self::default();
        let terminated = if elastic { &flags.leave } else { &flags.stop };
        for (signal, flag) in [(SIGINT, &flags.stop), (SIGTERM, terminated)] {
            signal_hook::flag::register(signal, Arc::clone(flag))
                .context("installing the signal handlers")?;
        }
        Ok(flags)
    }

    /// Returns whether a signal stops the run.
    pub fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns whether a signal makes this worker leave the run.
    pub fn leave(&self) -> bool {
        self.leave.load(Ordering::Relaxed)
    }
}

//! Signals: what a worker process was told from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

/// What this worker was told from outside.
#[derive(Debug, Clone, Default)]
pub struct StopFlags {
    stop: Arc<AtomicBool>,
    leave: Arc<AtomicBool>,
}

impl StopFlags {
    /// SIGINT stops the run, as it reaches all workers of a terminal at once. SIGTERM does too, but it only makes a worker of an
    /// elastic run leave.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen(elastic: bool) -> Result<Self> {
        let flags = Self::default();
        let terminated = if elastic { &flags.leave } else { &flags.stop };
        for (signal, flag) in [(SIGINT, &flags.stop), (SIGTERM, terminated)] {
            signal_hook::flag::register(signal, Arc::clone(flag)).context("listening for signals")?;
        }
        Ok(flags)
    }

    /// Whether it was told to stop the run.
    pub fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether it was told to leave the run.
    pub fn leave(&self) -> bool {
        self.leave.load(Ordering::Relaxed)
    }
}

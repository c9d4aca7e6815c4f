//! Cores of this machine.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the cores that this process may run on.
///
/// # Errors
/// The system call fails.
pub fn allowed() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).context("querying the cores of this process")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect())
}

/// Pins this thread, and threads that it starts later, to one core.
///
/// # Errors
/// The core does not exist, or this process may not run on it.
pub fn pin(core: usize) -> Result<()> {
    let allowed = self::allowed()?;
    ensure!(allowed.contains(&core), "core {core}: this process may run on the cores {allowed:?}");
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("pinning to core {core}"))
}

/// Ends this process when its parent process ends, for any reason.
///
/// # Errors
/// The system call fails.
pub fn end_with_parent() -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("tying this process to its parent")
}

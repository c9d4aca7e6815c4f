//! Cores of this machine.

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Cores that this process may run on.
///
/// # Errors
/// The system does not say.
pub fn allowed() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).context("asking for the cores of this process")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect())
}

/// The cores that were chosen for so many workers, of those that this process may run on.
///
/// # Errors
/// Another number of cores than of workers, or a core that is not ours.
pub fn chosen(cores: &[usize], workers: usize, allowed: &[usize]) -> Result<Vec<usize>> {
    ensure!(cores.len() == workers, "--pin names {} cores, but there are {workers} workers", cores.len());
    if let Some(core) = cores.iter().find(|core| !allowed.contains(core)) {
        bail!("--pin {core}: this process may run on the cores {allowed:?}");
    }
    Ok(cores.to_vec())
}

/// Keeps this thread, and threads it starts later, on one core.
///
/// # Errors
/// The core does not exist or is not ours.
pub fn pin(core: usize) -> Result<()> {
    let allowed = self::allowed()?;
    ensure!(allowed.contains(&core), "core {core}: this process may run on the cores {allowed:?}");
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("pinning to core {core}"))
}

/// Ends this process when the one that started it ends, however that ends.
///
/// # Errors
/// The system refuses.
pub fn end_with_parent() -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("tying this process to its parent")
}

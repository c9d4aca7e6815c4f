//! A worker process: who it is, and its training.

use anyhow::{Context, Result};

use super::cores;
use crate::training::{Hooks, Training, WORKER, WorkerProcess};
use crate::{elastic, step};

/// Who this process is, if a launcher started it as a worker. It is then tied to the launcher and pinned to its core: call this
/// before anything of libtorch runs, whose threads inherit the core.
///
/// # Errors
/// The variable holds something else, or the core cannot be had.
pub fn from_environment() -> Result<Option<WorkerProcess>> {
    let Some(text) = std::env::var_os(WORKER) else { return Ok(None) };
    let text = text.to_string_lossy();
    let process: WorkerProcess =
        serde_json::from_str(&text).with_context(|| format!("{WORKER}={text}: is no worker"))?;
    cores::end_with_parent()?;
    process.core.map_or(Ok(()), cores::pin)?;
    Ok(Some(process))
}

/// Trains as one worker.
///
/// # Errors
/// Options that contradict each other, data that cannot be used, a gradient that is wrong; without
/// [`Options::elastic`](crate::training::Options::elastic) also a worker that is gone.
pub fn train(training: &Training, process: &WorkerProcess, hooks: Hooks) -> Result<()> {
    if training.options.elastic {
        elastic::run(training, process, hooks)
    } else {
        step::run(training, process, hooks)
    }
}

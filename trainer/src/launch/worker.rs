//! A worker process: its identity and its training.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::cores;
use crate::training::{Hooks, Training, WORKER, WorkerProcess};
use crate::{elastic, step};

/// Returns the command that starts a worker process: this executable with the same arguments, and the
/// worker's identity.
///
/// # Errors
/// The path of this executable is unknown.
pub fn command(process: &WorkerProcess) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding the path of this program")?);
    command.args(std::env::args_os().skip(1)).env(WORKER, serde_json::to_string(process)?);
    command.stdin(Stdio::null());
    // c10d's own log repeats our errors, with C++ frames.
    if std::env::var_os("TORCH_CPP_LOG_LEVEL").is_none() {
        command.env("TORCH_CPP_LOG_LEVEL", "FATAL");
    }
    Ok(command)
}

/// Returns the identity of this process, if a launcher started it as a worker. The process then ends with the
/// launcher and is [pinned](enter) to its core.
///
/// # Errors
/// The variable holds anything else, or this process may not run on the core.
pub fn from_environment() -> Result<Option<WorkerProcess>> {
    let Some(process) = WorkerProcess::from_environment()? else { return Ok(None) };
    cores::end_with_parent()?;
    enter(process.core)?;
    Ok(Some(process))
}

/// Pins this process to a core and limits libtorch to one thread. Call it before any use of libtorch, whose
/// threads inherit the core.
///
/// # Errors
/// The core does not exist, or this process may not run on it.
pub fn enter(core: Option<usize>) -> Result<()> {
    core.map_or(Ok(()), cores::pin)?;
    tch::set_num_threads(1);
    tch::set_num_interop_threads(1);
    Ok(())
}

/// Trains as one worker.
///
/// # Errors
/// Options contradict each other, the data is unusable, or a gradient is wrong; without
/// [`Options::elastic`](crate::training::Options::elastic) also the loss of a worker.
pub fn train(training: &Training, process: &WorkerProcess, hooks: Hooks) -> Result<()> {
    if training.options.elastic {
        elastic::run(training, process, hooks)
    } else {
        step::run(training, process, hooks)
    }
}

//! A worker process: who it is, and its training.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::cores;
use crate::training::{Hooks, Training, WORKER, WorkerProcess};
use crate::{elastic, step};

/// The command that starts a worker process: this executable with these arguments, told who it is.
///
/// # Errors
/// The system does not name this executable.
pub fn command(process: &WorkerProcess) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(std::env::args_os().skip(1)).env(WORKER, serde_json::to_string(process)?);
    command.stdin(Stdio::null());
    // c10d's own log repeats, with C++ frames, what our errors say.
    if std::env::var_os("TORCH_CPP_LOG_LEVEL").is_none() {
        command.env("TORCH_CPP_LOG_LEVEL", "FATAL");
    }
    Ok(command)
}

/// Who this process is, if a launcher started it as a worker. The process then ends with the launcher and [enters](enter) its
/// core.
///
/// # Errors
/// The variable holds something else, or the core cannot be had.
pub fn from_environment() -> Result<Option<WorkerProcess>> {
    let Some(process) = WorkerProcess::from_environment()? else { return Ok(None) };
    cores::end_with_parent()?;
    enter(process.core)?;
    Ok(Some(process))
}

/// Pins this process to a core, and gives libtorch one thread. Call it before anything of libtorch runs, whose threads inherit the
/// core.
///
/// # Errors
/// The core does not exist or is not ours.
pub fn enter(core: Option<usize>) -> Result<()> {
    core.map_or(Ok(()), cores::pin)?;
    tch::set_num_threads(1);
    tch::set_num_interop_threads(1);
    Ok(())
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

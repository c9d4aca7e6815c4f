//! Starting the worker processes of one machine.
//!
//! Workers are processes of the same executable with the same arguments. The launcher passes each worker its
//! identity in the environment variable [`WORKER`](crate::training::WORKER). A program calls
//! [`Builder::run`], which runs as the launcher or as a worker.
//!
//! - [`launch`]: the launcher; `worker`: a worker process
//! - `processes`: workers of a run that ends if one fails; `supervise`: workers of an elastic run

pub mod cores;
pub mod processes;
mod supervise;
mod worker;

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use evenstep_c10d::Store;

use crate::progress::Output;
use crate::training::{Builder, LOOPBACK, LaunchOptions, Options, WorkerProcess};
pub use processes::LaunchOutcome;
use processes::{WorkerProcesses, signals};
use supervise::{Bounds, Supervisor};
pub use worker::{command, enter, from_environment, train};

/// Timeout of the store on its own port.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);

impl Builder {
    /// Runs the training. The process that you start is the launcher: it starts the workers and waits for
    /// them. The processes that it starts are the workers.
    ///
    /// # Errors
    /// Options contradict each other, or a worker failed.
    pub fn run(self) -> Result<LaunchOutcome> {
        let Some(process) = from_environment()? else {
            return launch(self.options(), &self.launch, &[], &[]);
        };
        let hooks = (self.hooks)(&process)?;
        train(&self.training()?, &process, hooks)?;
        Ok(LaunchOutcome::Finished)
    }
}

/// Starts the workers and waits for them. Rank r is pinned to core r of `cores`, unless `cores` is empty. `variables` are added to
/// their environment.
///
/// # Errors
/// Options contradict each other, or a worker failed.
pub fn launch(
    options: &Options,
    launch: &LaunchOptions,
    cores: &[usize],
    variables: &[(&str, String)],
) -> Result<LaunchOutcome> {
    let world_size = launch.workers as usize;
    options.check(world_size)?;
    let output = Output::new("launch");
    let signals = signals()?;
    // The launcher hosts the store, so that the store survives the loss of any worker.
    let store = Store::host(LOOPBACK, 0, STORE_TIMEOUT)?;
    let worker = |rank: usize, life: Option<u32>| -> Result<Command> {
        let local = WorkerProcess::local(rank, world_size, store.port(), cores.get(rank).copied());
        let mut command = command(&WorkerProcess { life, ..local })?;
        command.envs(variables.iter().cloned());
        if options.verify_gradient.is_some() {
            // cuDNN otherwise rounds the factors of convolutions to 10 bits, so that gradients depend on the division.
            command.env("NVIDIA_TF32_OVERRIDE", "0");
        }
        Ok(command)
    };
    if options.elastic {
        let bounds = Bounds { max_restarts: launch.max_restarts, min_workers: options.min_workers as usize };
        let next = |slot, life| worker(slot, Some(life));
        return Supervisor::start(world_size, &next, &store, bounds, &output)?.watch(&signals);
    }
    let mut workers = WorkerProcesses::default();
    for rank in 0..world_size {
        workers.start(worker(rank, None)?)?;
    }
    workers.watch(&signals, &output)
}

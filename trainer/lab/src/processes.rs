//! The worker processes of an experiment: one command starts all of them on this machine, or you start each
//! one on several machines.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use evenstep_c10d::{Group, Store};
use evenstep_trainer::collective::{HostPort, connect};
use evenstep_trainer::launch::processes::{LaunchOutcome, WorkerProcesses, signals};
use evenstep_trainer::launch::{command, cores, enter, from_environment};
use evenstep_trainer::progress::Output;
use evenstep_trainer::training::{LOOPBACK, WorkerProcess};
use tch::Device;

use crate::task::TaskArgs;

/// Arguments for the worker processes: all on this machine, or one worker of a group that spans several
/// machines.
#[derive(Debug, Clone, Args)]
pub struct ProcessArgs {
    /// Run only the worker with this rank, from 0, instead of starting all: for several machines
    #[arg(long, requires = "store")]
    pub rank: Option<usize>,
    /// Address of the store, host:port (with --rank)
    #[arg(long, requires = "rank")]
    pub store: Option<HostPort>,
    /// Address of this machine that the other workers can reach (with --rank)
    #[arg(long, default_value = "127.0.0.1", env = "EVENSTEP_INTERFACE")]
    pub interface: String,
    /// Timeout for a stalled worker, in seconds; the other workers then fail with an error
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout_s: u64,
}

/// Runs `work` in each of `workers` processes. The process that you start runs `check`, starts the workers
/// and waits for them. Each worker is pinned to one of the first cores if there are enough cores.
///
/// # Errors
/// Returns the errors of `check` and `work`. Fails if a worker fails.
pub fn run(
    (args, task): (&ProcessArgs, &TaskArgs),
    workers: usize,
    log_prefix: &str,
    check: impl FnOnce() -> Result<()>,
    work: impl FnOnce(Process) -> Result<()>,
) -> Result<LaunchOutcome> {
    if let Some(process) = from_environment()? {
        work(Process::join(args, &process, task)?)?;
        return Ok(LaunchOutcome::Finished);
    }
    if let Some(rank) = args.rank {
        anyhow::ensure!(rank < workers, "--rank {rank}: must be below the number of workers, {workers}");
        let store = args.store.clone();
        let store = store.context("--rank requires --store, the address of the store of this run")?;
        let interface = args.interface.clone();
        let process = WorkerProcess { store, interface, ..WorkerProcess::local(rank, workers, 0, None) };
        enter(process.core)?;
        work(Process::join(args, &process, task)?)?;
        return Ok(LaunchOutcome::Finished);
    }
    check()?;
    let (output, mut cores) = (Output::new(log_prefix), cores::allowed()?);
    if workers > cores.len() {
        let few = cores.len();
        output.say(&format!(
            "{workers} workers are not pinned and slow each other down: only {few} cores are available"
        ));
        cores.clear();
    }
    let signals = signals()?;
    // The launcher hosts the store, so that it survives the loss of any worker.
    let store = Store::host(LOOPBACK, 0, Duration::from_secs(args.timeout_s))?;
    let mut processes = WorkerProcesses::default();
    for rank in 0..workers {
        let core = cores.get(rank).copied();
        processes.start(command(&WorkerProcess::local(rank, workers, store.port(), core))?)?;
    }
    processes.watch(&signals, &output)
}

/// A worker process of an experiment.
#[derive(Debug)]
pub struct Process {
    /// Rank of the process, from 0.
    pub rank: usize,
    /// Number of worker processes.
    pub world_size: usize,
    /// Device on which the process computes.
    pub device: Device,
    store: Store,
    interface: String,
    timeout: Duration,
}

impl Process {
    /// Connects to the store of the worker processes.
    ///
    /// # Errors
    /// Fails if the device is not available or the store does not respond.
    fn join(args: &ProcessArgs, process: &WorkerProcess, task: &TaskArgs) -> Result<Self> {
        let WorkerProcess { rank, world_size, store, interface, .. } = process;
        let timeout = Duration::from_secs(args.timeout_s);
        Ok(Self {
            rank: *rank,
            world_size: *world_size,
            device: task.device_of(*rank)?,
            store: Store::connect(&store.host, store.port, timeout)?,
            interface: interface.clone(),
            timeout,
        })
    }

    /// Publishes a value to all ranks. Each name can be used once.
    ///
    /// # Errors
    /// Fails if the value is too long or the store is unreachable.
    pub fn publish(&self, name: &str, value: &[u8]) -> Result<()> {
        Ok(self.store.set(&format!("{name}/{}", self.rank), value)?)
    }

    /// Waits for the value that a rank publishes under this name, and returns it.
    ///
    /// # Errors
    /// Fails if the rank publishes no value within the timeout or the store is unreachable.
    pub fn published(&self, name: &str, rank: usize) -> Result<Vec<u8>> {
        Ok(self.store.get(&format!("{name}/{rank}"), self.timeout)?)
    }

    /// Creates a group of the first `size` ranks, which must include this one. Each name can be used for
    /// one group.
    ///
    /// # Errors
    /// Fails if a rank does not join within the timeout.
    pub fn group(&self, name: &str, size: usize) -> Result<Group> {
        self.connect(name, self.rank, size)
    }

    /// Creates a group of this rank only.
    ///
    /// # Errors
    /// Fails if the group cannot be created.
    pub fn alone(&self, name: &str) -> Result<Group> {
        self.connect(&format!("{name}-{}", self.rank), 0, 1)
    }

    fn connect(&self, name: &str, rank: usize, size: usize) -> Result<Group> {
        let group =
            connect(&self.interface, self.device, &self.store.prefix(name)?, rank, size, self.timeout);
        group.with_context(|| format!("connecting to the other {} workers", size.saturating_sub(1)))
    }
}

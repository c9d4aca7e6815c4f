//! The worker processes of an experiment: started on this machine by one command, or one by one on several machines.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use evenstep_c10d::{Group, Store};
use evenstep_trainer::collective::{HostPort, connect};
use evenstep_trainer::launch::metrics::RunMetrics;
use evenstep_trainer::launch::processes::{Ended, WorkerProcesses, signals};
use evenstep_trainer::launch::{command, cores, enter, from_environment};
use evenstep_trainer::progress::Output;
use evenstep_trainer::training::{LOOPBACK, WorkerProcess};
use tch::Device;

use crate::task::TaskArgs;

/// Worker processes on this machine, or one worker of a group that spans machines.
#[derive(Debug, Clone, Args)]
pub struct ProcessArgs {
    /// Pin worker r to the r-th of these cores [default: to the r-th there is, where each worker can have one]
    #[arg(long, value_delimiter = ',', env = "EVENSTEP_PIN")]
    pub pin: Option<Vec<usize>>,
    /// Take part as this worker, counted from 0, and start none: for several machines
    #[arg(long, requires = "store")]
    pub rank: Option<usize>,
    /// With --rank: where the store is, host:port
    #[arg(long, requires = "rank")]
    pub store: Option<HostPort>,
    /// With --rank: this machine's address that the other workers can reach
    #[arg(long, default_value = "127.0.0.1", env = "EVENSTEP_INTERFACE")]
    pub interface: String,
    /// With --rank: pin this worker to a core
    #[arg(long, requires = "rank")]
    pub core: Option<usize>,
    /// A worker that stalls for longer is an error on all others
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout_s: u64,
}

/// Runs `work` as one of `workers` processes; in the process that a person starts, starts the others and waits for them, after
/// `check`. Each is pinned to a core if there is a core for each.
///
/// # Errors
/// What `check` or `work` says, cores that cannot be had, or a worker that failed.
pub fn run(
    (args, task): (&ProcessArgs, &TaskArgs),
    workers: usize,
    speaker: &str,
    check: impl FnOnce() -> Result<()>,
    work: impl FnOnce(Process) -> Result<()>,
) -> Result<Ended> {
    if let Some(process) = from_environment()? {
        work(Process::join(args, &process, task)?)?;
        return Ok(Ended::Finished);
    }
    if let Some(rank) = args.rank {
        anyhow::ensure!(rank < workers, "--rank {rank}: must be below the number of workers, {workers}");
        let store = args.store.clone();
        let store = store.context("--rank: needs --store, through which workers find each other")?;
        let interface = args.interface.clone();
        let process = WorkerProcess { store, interface, ..WorkerProcess::local(rank, workers, 0, args.core) };
        enter(process.core)?;
        work(Process::join(args, &process, task)?)?;
        return Ok(Ended::Finished);
    }
    check()?;
    let (output, allowed) = (Output::new(speaker), cores::allowed()?);
    let chosen = match &args.pin {
        Some(cores) => cores::chosen(cores, workers, &allowed)?,
        None if workers <= allowed.len() => allowed,
        None => {
            let few = allowed.len();
            output.say(&format!(
                "{workers} workers on {few} cores are not pinned, and get in each other's way"
            ));
            Vec::new()
        }
    };
    let signals = signals()?;
    // Hosted here and not in a worker, so that it outlives whichever worker is lost.
    let store = Store::host(LOOPBACK, 0, Duration::from_secs(args.timeout_s))?;
    let mut processes = WorkerProcesses::default();
    for rank in 0..workers {
        let core = chosen.get(rank).copied();
        processes.start(command(&WorkerProcess::local(rank, workers, store.port(), core))?)?;
    }
    processes.watch(&signals, &output, &RunMetrics::default())
}

/// One worker process among the others.
#[derive(Debug)]
pub struct Process {
    /// Its position, from 0.
    pub rank: usize,
    /// How many there are.
    pub world_size: usize,
    /// Where it computes.
    pub device: Device,
    store: Store,
    interface: String,
    timeout: Duration,
}

impl Process {
    /// Joins the others.
    ///
    /// # Errors
    /// A device that is not there, or a store that does not answer.
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

    /// Publishes a value to all ranks, under a name that is used once.
    ///
    /// # Errors
    /// It is too long, or the store is gone.
    pub fn publish(&self, name: &str, value: &[u8]) -> Result<()> {
        Ok(self.store.set(&format!("{name}/{}", self.rank), value)?)
    }

    /// The value that a rank published under this name.
    ///
    /// # Errors
    /// It publishes nothing in time, or the store is gone.
    pub fn published(&self, name: &str, rank: usize) -> Result<Vec<u8>> {
        Ok(self.store.get(&format!("{name}/{rank}"), self.timeout)?)
    }

    /// A group of the first `size` ranks, this one among them; one for each name.
    ///
    /// # Errors
    /// Some rank does not come in time.
    pub fn group(&self, name: &str, size: usize) -> Result<Group> {
        self.connect(name, self.rank, size)
    }

    /// A group of this rank alone.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn alone(&self, name: &str) -> Result<Group> {
        self.connect(&format!("{name}-{}", self.rank), 0, 1)
    }

    fn connect(&self, name: &str, rank: usize, size: usize) -> Result<Group> {
        let group =
            connect(&self.interface, self.device, &self.store.prefix(name)?, rank, size, self.timeout);
        group.with_context(|| format!("finding the other {} workers", size.saturating_sub(1)))
    }
}

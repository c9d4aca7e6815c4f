//! Workers that run one thing together: begun on this machine by one command, or one by one on several.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use evenstep_c10d::{Group, Store};
use tch::Device;

use crate::board::Board;
use crate::cli::{SeatArgs, TaskArgs};
use crate::crew::{Crew, Ended, TIED, quiet, signals};
use crate::device::connect;
use crate::output::Output;
use crate::pin;

/// Begins so many workers, each this very command with a rank of its own, and waits for them. Each is pinned to a core where there
/// is one for each.
///
/// # Errors
/// Cores that cannot be had, or a worker that failed.
pub fn begin(args: &SeatArgs, workers: usize, speaker: &str) -> Result<Ended> {
    let (output, allowed) = (Output::new(speaker), pin::cores()?);
    let cores = match &args.pin {
        Some(cores) => pin::chosen(cores, workers, &allowed)?,
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
    let store = Store::host("127.0.0.1", 0, Duration::from_secs(args.timeout_s))?;
    let mut crew = Crew::default();
    for rank in 0..workers {
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.args(std::env::args_os().skip(1)).arg(format!("--rank={rank}"));
        command.arg(format!("--store=127.0.0.1:{}", store.port()));
        command.args(cores.get(rank).map(|core| format!("--core={core}")));
        command.env(TIED, "1").stdin(Stdio::null());
        quiet(&mut command);
        crew.start(command)?;
    }
    crew.watch(&signals, &output, &Board::default())
}

/// One worker's place among the others.
#[derive(Debug)]
pub struct Seat {
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

impl Seat {
    /// Takes the place; before anything of libtorch runs, whose threads inherit the core.
    ///
    /// # Errors
    /// A core or a device that is not there, a store that does not answer, a rank beyond the workers.
    pub fn take(args: &SeatArgs, rank: usize, world_size: usize, task: &TaskArgs) -> Result<Self> {
        anyhow::ensure!(
            rank < world_size,
            "--rank {rank}: must be below the number of workers, {world_size}"
        );
        args.core.map_or(Ok(()), pin::to_core)?;
        tch::set_num_threads(1);
        tch::set_num_interop_threads(1);
        let device = task.device_of(rank)?;
        let timeout = Duration::from_secs(args.timeout_s);
        let at =
            args.store.as_ref().context("--rank: needs --store, through which workers find each other")?;
        let store = Store::connect(&at.host, at.port, timeout)?;
        Ok(Self { rank, world_size, device, store, interface: args.interface.clone(), timeout })
    }

    /// Tells all ranks something, under a name that is used once.
    ///
    /// # Errors
    /// It is too long, or the store is gone.
    pub fn tell(&self, name: &str, words: &[u8]) -> Result<()> {
        Ok(self.store.set(&format!("{name}/{}", self.rank), words)?)
    }

    /// What a rank told under this name.
    ///
    /// # Errors
    /// It does not tell in time, or the store is gone.
    pub fn heard(&self, name: &str, rank: usize) -> Result<Vec<u8>> {
        Ok(self.store.get(&format!("{name}/{rank}"), self.timeout)?)
    }

    /// A group of the first so many ranks, this one among them; one for each name.
    ///
    /// # Errors
    /// Some rank does not come in time.
    pub fn group(&self, name: &str, size: usize) -> Result<Group> {
        self.join(name, self.rank, size)
    }

    /// A group of this rank alone.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn alone(&self, name: &str) -> Result<Group> {
        self.join(&format!("{name}-{}", self.rank), 0, 1)
    }

    fn join(&self, name: &str, rank: usize, size: usize) -> Result<Group> {
        let group =
            connect(&self.interface, self.device, &self.store.prefix(name)?, rank, size, self.timeout);
        group.with_context(|| format!("finding the other {} workers", size.saturating_sub(1)))
    }
}

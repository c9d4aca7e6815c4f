//! Identity of a worker process: its rank, and how it reaches the other workers.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::collective::HostPort;

/// The environment variable that holds the identity of a worker process as JSON. The launcher sets it.
pub const WORKER: &str = "EVENSTEP_TRAINER_WORKER";

/// Address at which the workers of one machine meet.
pub const LOOPBACK: &str = "127.0.0.1";

/// Identity of one worker process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerProcess {
    /// Rank, from 0.
    pub rank: usize,
    /// Number of workers at the start of the run.
    pub world_size: usize,
    /// The store through which workers find each other.
    pub store: HostPort,
    /// This machine's address that the other workers can reach.
    pub interface: String,
    /// The core that the worker is pinned to.
    pub core: Option<usize>,
    /// Number of times that an elastic launcher started this worker before.
    pub life: Option<u32>,
}

impl WorkerProcess {
    /// Returns a worker on the machine that hosts the store at this port.
    pub fn local(rank: usize, world_size: usize, port: u16, core: Option<usize>) -> Self {
        let store = HostPort { host: LOOPBACK.to_owned(), port };
        let interface = LOOPBACK.to_owned();
        Self { rank, world_size, store, interface, core, life: None }
    }

    /// Returns the identity of this process, if a launcher started it as a worker.
    ///
    /// # Errors
    /// The variable holds anything else.
    pub fn from_environment() -> Result<Option<Self>> {
        let Some(text) = std::env::var_os(WORKER) else { return Ok(None) };
        let text = text.to_string_lossy();
        let process = serde_json::from_str(&text);
        Ok(Some(process.with_context(|| format!("{WORKER}={text}: only the launcher sets this variable"))?))
    }
}

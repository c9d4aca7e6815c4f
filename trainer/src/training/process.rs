//! Who a worker process is: its rank, and where it finds the other workers.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::collective::HostPort;

/// The environment variable in which the launcher tells a worker process who it is, as JSON.
pub const WORKER: &str = "EVENSTEP_TRAINER_WORKER";

/// Where the workers of one machine meet.
pub const LOOPBACK: &str = "127.0.0.1";

/// One worker process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerProcess {
    /// Its position, from 0.
    pub rank: usize,
    /// The number of workers that the run starts with.
    pub world_size: usize,
    /// The store through which workers find each other.
    pub store: HostPort,
    /// This machine's address that the other workers can reach.
    pub interface: String,
    /// The core that the worker is pinned to.
    pub core: Option<usize>,
    /// How often an elastic launcher started this worker before.
    pub life: Option<u32>,
    /// Whether standard input is a socket of the launcher's that takes the metrics stream.
    pub streams_metrics: bool,
}

impl WorkerProcess {
    /// A worker on the machine that hosts the store at this port.
    pub fn local(rank: usize, world_size: usize, port: u16, core: Option<usize>) -> Self {
        let store = HostPort { host: LOOPBACK.to_owned(), port };
        let interface = LOOPBACK.to_owned();
        Self { rank, world_size, store, interface, core, life: None, streams_metrics: false }
    }

    /// Who this process is, if a launcher started it as a worker.
    ///
    /// # Errors
    /// The variable holds something else.
    pub fn from_environment() -> Result<Option<Self>> {
        let Some(text) = std::env::var_os(WORKER) else { return Ok(None) };
        let text = text.to_string_lossy();
        let process = serde_json::from_str(&text);
        Ok(Some(process.with_context(|| format!("{WORKER}={text}: only the launcher sets this variable"))?))
    }
}

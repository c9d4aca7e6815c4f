//! Who a worker process is: its rank, and where it finds the other workers.

use serde::{Deserialize, Serialize};

use crate::collective::HostPort;

/// The environment variable in which the launcher tells a worker process who it is, as JSON.
pub const WORKER: &str = "EVENSTEP_TRAINER_WORKER";

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

//! Where a process stands among the workers that run one thing together.

use clap::Args;

use crate::host_port::HostPort;

/// A crew of workers on this machine, or one worker of a crew.
#[derive(Debug, Clone, Args)]
pub struct SeatArgs {
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

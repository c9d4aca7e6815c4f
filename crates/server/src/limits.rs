//! Limits of connections.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Largest number of connections, whatever the process may open.
const CONNECTIONS_MAX: usize = 16_384;
/// File descriptors that are left for everything else: the store, logs, libraries.
const OTHER_FILES: u64 = 256;
/// Smallest number of connections, if the process may open only few files.
const CONNECTIONS_MIN: usize = 64;

/// Limits of a server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Number of open connections.
    pub connections: usize,
    /// Number of open connections from one IP address.
    pub per_address: usize,
    /// Time from the first byte of a request to the end of its headers.
    pub headers: Duration,
    /// Time without a request on an open connection.
    pub idle: Duration,
    /// Time in which a client must acknowledge data.
    pub unacknowledged: Duration,
    /// Time that a shutdown waits for requests in flight.
    pub drain: Duration,
}

impl Limits {
    /// Limits for `connections` connections, half of them from one address.
    pub fn new(connections: usize) -> Self {
        Self {
            connections,
            per_address: connections.div_ceil(2),
            headers: Duration::from_secs(10),
            idle: Duration::from_secs(75),
            unacknowledged: Duration::from_secs(30),
            drain: Duration::from_secs(4),
        }
    }

    /// Limits for as many connections as the process may open files, up to 16,384. Raises the process's soft limit of
    /// open files to the hard limit.
    pub fn of_process() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        if let Err(error) = &raised {
            tracing::warn!(%error, soft = current, hard = maximum, "cannot raise the limit of open files");
        }
        let files = if raised.is_ok() { maximum } else { current };
        let connections = files.map_or(CONNECTIONS_MAX, |files| {
            usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(CONNECTIONS_MAX)
        });
        Self::new(connections.clamp(CONNECTIONS_MIN, CONNECTIONS_MAX))
    }
}

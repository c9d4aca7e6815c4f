//! Time limits and bounds of a client.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::tls::ClientTls;

/// Time limits and bounds of a [`Client`](crate::Client).
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Time limit of a request over all servers: no server is tried after it, and it bounds each phase (connect, send,
    /// receive) of an attempt. Default 2 s.
    pub request_timeout: Duration,
    /// Minimum value of `request_timeout` at the end of a run, when no iteration waits any more. Default 2 s.
    pub leave_timeout: Duration,
    /// Maximum length of a response, in bytes. Default 8 MiB.
    pub response_bytes_max: u64,
    /// Number of further attempts while a job moves from one predictor to another. Default 10.
    pub handover_attempts_max: u32,
    /// Pause between these attempts. Default 20 ms.
    pub handover_pause: Duration,
    /// The time source.
    pub clock: Arc<dyn Clock>,
    /// TLS, for servers with `https://`. Default: public CAs.
    pub tls: ClientTls,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(2),
            leave_timeout: Duration::from_secs(2),
            response_bytes_max: 8 << 20,
            handover_attempts_max: 10,
            handover_pause: Duration::from_millis(20),
            clock: Arc::new(SystemClock),
            tls: ClientTls::default(),
        }
    }
}

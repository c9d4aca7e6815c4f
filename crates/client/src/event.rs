//! Events of a connection: state changes for a log.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;

/// A change in the state of a [`Connection`](crate::Connection).
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The predictor was unreachable when the connection was opened.
    Unreachable(Error),
    /// A request failed. The connection registers again when the predictor is reachable.
    Disconnected(Error),
    /// The predictor is reachable again, and the run is registered in this generation.
    Reconnected {
        /// The generation.
        generation: u64,
    },
    /// The predictor rejected requests.
    Rejected {
        /// The last rejection.
        error: Error,
        /// Number of consecutive rejections.
        in_a_row: u64,
    },
    /// The predictor will not serve this run; the connection sends no more requests.
    GivenUp(Error),
    /// The run ended with undelivered reports.
    ReportsUndelivered,
    /// The run ended, but its workers could not be removed from the job. They stay until their leases expire.
    LeaveFailed(Error),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => {
                write!(f, "{error}; training starts without allocations and retries in the background")
            }
            Self::Disconnected(error) => {
                write!(f, "{error}; the last allocation stays in force while the connection is restored")
            }
            Self::Reconnected { generation } => {
                write!(f, "connected to the predictor in generation {generation}")
            }
            Self::Rejected { error, .. } => write!(f, "{error}; the last allocation stays in force"),
            Self::GivenUp(error) => write!(f, "{error}; this run sends no more requests"),
            Self::ReportsUndelivered => {
                f.write_str("the predictor is unreachable: the last reports were not delivered")
            }
            Self::LeaveFailed(error) => write!(f, "{error}; its lease will expire instead"),
        }
    }
}

/// Handler of events, called on the thread that uses the connection.
#[derive(Clone)]
pub(crate) struct EventHandler(Arc<dyn Fn(&Event) + Send + Sync>);

impl EventHandler {
    pub(crate) fn new(handle: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(handle))
    }

    pub(crate) fn handle(&self, event: &Event) {
        (self.0)(event);
    }
}

impl Default for EventHandler {
    fn default() -> Self {
        Self::new(|_| ())
    }
}

impl fmt::Debug for EventHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventHandler")
    }
}

//! Options of a connection, and its opening.

use crate::backlog::Backlog;
use crate::backoff::Backoff;
use crate::connection::{Connection, Reconnect};
use crate::error::Error;
use crate::event::{Event, EventHandler};
use crate::recovery::FindServers;
use crate::registration::Registration;
use crate::servers::Servers;

/// A connection that is not open yet, and its options.
#[derive(Debug)]
pub struct ConnectionBuilder(Connection);

impl Connection {
    /// Returns a builder of a connection for this run.
    pub fn builder(registration: Registration) -> ConnectionBuilder {
        ConnectionBuilder(Self::new(registration))
    }
}

impl ConnectionBuilder {
    /// Sets the queue of reports, to share it with the code that fills it. Default: an empty queue.
    #[must_use]
    pub fn backlog(mut self, backlog: Backlog) -> Self {
        self.0.backlog = backlog;
        self
    }

    /// Sets how a lost connection is restored. Default: by a thread.
    #[must_use]
    pub fn reconnect(mut self, reconnect: Reconnect) -> Self {
        self.0.reconnect = reconnect;
        self
    }

    /// Sets the pauses between attempts to restore the connection. Default: 100 ms, doubled up to 2 s.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.0.backoff = backoff;
        self
    }

    /// Sets the handler of events, which is called on the thread that uses the connection. Default: none.
    #[must_use]
    pub fn on_event(mut self, handle: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.0.events = EventHandler::new(handle);
        self
    }

    /// Sets a function that is called before each attempt to restore the connection. The servers that it returns
    /// replace the current ones. Default: the servers stay.
    #[must_use]
    pub fn find_servers(mut self, find: impl Fn() -> Option<Servers> + Send + Sync + 'static) -> Self {
        self.0.find_servers = FindServers::new(find);
        self
    }

    /// Registers the run. If the predictor is unreachable or has another temporary failure, the connection opens
    /// nevertheless and is restored later.
    ///
    /// # Errors
    /// The predictor rejects this run, or the job id belongs to another run.
    pub fn open(self) -> Result<Connection, Error> {
        let Self(mut connection) = self;
        match connection.registration().begin().map(|joined| joined.generation) {
            Ok(generation) => connection.set_connected(generation),
            Err(error) if error.kind.is_permanent() => return Err(error),
            Err(error) => {
                connection.start_unreachable(error);
            }
        }
        Ok(connection)
    }

    /// Registers a changed set of workers of a run that the predictor has accepted before. Returns at once:
    /// the connection is restored as after an outage.
    pub fn reopen(self) -> Connection {
        let Self(mut connection) = self;
        (connection.registered, connection.begun) = (true, true);
        connection.disconnect();
        connection
    }
}

//! Options of a connection, and its opening.

use crate::backlog::Backlog;
use crate::backoff::Backoff;
use crate::connection::{Connection, Reconnect};
use crate::error::Error;
use crate::event::{Event, EventHandler};
use crate::recovery::FindServers;
use crate::registration::Registration;
use crate::servers::Servers;

/// Options of a connection that is not open yet.
#[derive(Debug)]
pub struct ConnectionBuilder {
    pub(crate) registration: Registration,
    pub(crate) backlog: Backlog,
    pub(crate) reconnect: Reconnect,
    pub(crate) backoff: Backoff,
    pub(crate) find_servers: FindServers,
    pub(crate) events: EventHandler,
}

impl ConnectionBuilder {
    pub(crate) fn new(registration: Registration) -> Self {
        let (backlog, reconnect, backoff, find_servers, events) = Default::default();
        Self { registration, backlog, reconnect, backoff, find_servers, events }
    }

    /// Sets the queue of reports, to share it with the code that fills it. Default: an empty queue.
    #[must_use]
    pub fn backlog(mut self, backlog: Backlog) -> Self {
        self.backlog = backlog;
        self
    }

    /// Sets how a lost connection is restored. Default: by a thread.
    #[must_use]
    pub fn reconnect(mut self, reconnect: Reconnect) -> Self {
        self.reconnect = reconnect;
        self
    }

    /// Sets the pauses between attempts to restore the connection. Default: 100 ms, doubled up to 2 s.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets the handler of events, which is called on the thread that uses the connection. Default: none.
    #[must_use]
    pub fn on_event(mut self, handle: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.events = EventHandler::new(handle);
        self
    }

    /// Sets a function that is called before each attempt to restore the connection. The servers that it returns
    /// replace the current ones. Default: the servers stay.
    #[must_use]
    pub fn find_servers(mut self, find: impl Fn() -> Option<Servers> + Send + Sync + 'static) -> Self {
        self.find_servers = FindServers::new(find);
        self
    }

    /// Registers the run. If the predictor is unreachable or has another temporary failure, the connection opens
    /// nevertheless and is restored later.
    ///
    /// # Errors
    /// The predictor rejects this run, or the job id belongs to another run.
    pub fn open(self) -> Result<Connection, Error> {
        let registered = self.registration.register().and_then(|joined| {
            self.registration.check_first(&joined)?;
            Ok(joined.generation)
        });
        let mut connection = Connection::new(self, false);
        match registered {
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
        let mut connection = Connection::new(self, true);
        connection.disconnect();
        connection
    }
}

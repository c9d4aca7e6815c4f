//! A worker's own connection to the job's store, for its claims.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evenstep_c10d::{Error, Result, Store};

use crate::collective::HostPort;

/// Result of an addition to a counter.
#[derive(Debug, Clone, Copy)]
pub struct Total {
    /// The counter after the addition.
    pub total: i64,
    /// Arrival of the result.
    pub at: Instant,
    /// Duration of the addition, from its due time.
    pub took: Duration,
}

/// Capacity of the thread's queue: an addition and the request to make it now, of the current and of the
/// previous claim.
const MESSAGES_MAX: usize = 4;

/// The connection, whose thread makes additions in parallel with computing. At most one addition is in flight.
#[derive(Debug)]
pub struct Connection {
    /// `None` tells the thread to end.
    wanted: Option<SyncSender<ThreadMessage>>,
    totals: Receiver<Result<Total>>,
    thread: Option<JoinHandle<()>>,
}

/// Messages to the thread.
#[derive(Debug, PartialEq)]
enum ThreadMessage {
    /// Adds `amount` to a counter at `due`.
    Add { key: String, amount: i64, due: Instant },
    /// Makes the addition now: the worker has nothing else to do.
    Now,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn connect(at: &HostPort, timeout: Duration) -> Result<Self> {
        let store = Store::connect(&at.host, at.port, timeout)?;
        let (wanted, requests) = mpsc::sync_channel(MESSAGES_MAX);
        let (answer, totals) = mpsc::sync_channel(1);
        let thread = thread::spawn(move || {
            while let Ok(next) = requests.recv() {
                // Belongs to an addition that was already made.
                let ThreadMessage::Add { key, amount, due } = next else { continue };
                let wait = due.saturating_duration_since(Instant::now());
                if !wait.is_zero() && requests.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
                    break;
                }
                let begun = due.min(Instant::now());
                if answer.send(timed(&store, &key, amount, begun)).is_err() {
                    break;
                }
            }
        });
        Ok(Self { wanted: Some(wanted), totals, thread: Some(thread) })
    }

    /// Adds to a counter at `due`. [`Connection::total`] returns the result.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn add(&self, key: &str, amount: i64, due: Instant) -> Result<()> {
        self.tell(ThreadMessage::Add { key: key.to_owned(), amount, due })
    }

    /// Waits for the result of the last addition, and makes it now if it is not due yet.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn total(&self) -> Result<Total> {
        self.tell(ThreadMessage::Now)?;
        self.totals.recv().map_err(|_| ended())?
    }

    fn tell(&self, wanted: ThreadMessage) -> Result<()> {
        self.wanted.as_ref().and_then(|to| to.send(wanted).ok()).ok_or_else(ended)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.wanted = None;
        // The thread must not use the store while the process ends. At most one addition is still to be made.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn timed(store: &Store, key: &str, amount: i64, begun: Instant) -> Result<Total> {
    let total = store.add(key, amount)?;
    let at = Instant::now();
    Ok(Total { total, at, took: at - begun })
}

fn ended() -> Error {
    Error::Invalid { operation: "claiming", reason: "no addition is in flight".into() }
}

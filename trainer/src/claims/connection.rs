//! A worker's own connection to the job's store, for its claims.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evenstep_c10d::{Error, Result, Store};

use super::mode::ClaimMode;
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

/// The connection. At most one addition is in flight.
#[derive(Debug)]
pub enum Connection {
    /// Additions are made by the caller's thread.
    Need { store: Store, total: Option<Total> },
    /// Additions are made by a separate thread.
    Ahead { addition_thread: AdditionThread },
}

/// Capacity of the thread's queue: an addition and the request to make it now, of the current and of the
/// previous claim.
const MESSAGES_MAX: usize = 4;

/// A thread that makes additions in parallel with computing.
#[derive(Debug)]
pub struct AdditionThread {
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
    pub fn connect(at: &HostPort, mode: ClaimMode, timeout: Duration) -> Result<Self> {
        let store = Store::connect(&at.host, at.port, timeout)?;
        Ok(match mode {
            ClaimMode::Need => Self::Need { store, total: None },
            ClaimMode::Ahead => Self::Ahead { addition_thread: AdditionThread::new(store) },
        })
    }

    /// Returns whether additions run in parallel with computing.
    pub fn is_ahead(&self) -> bool {
        matches!(self, Self::Ahead { .. })
    }

    /// Adds to a counter, at `due` if additions run in parallel with computing. [`Connection::total`] returns
    /// the result.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn add(&mut self, key: &str, amount: i64, due: Instant) -> Result<()> {
        match self {
            Self::Need { store, total } => *total = Some(timed(store, key, amount, Instant::now())?),
            Self::Ahead { addition_thread } => {
                addition_thread.tell(ThreadMessage::Add { key: key.to_owned(), amount, due })?;
            }
        }
        Ok(())
    }

    /// Returns the result of the last addition. Waits for it if it runs in parallel.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn total(&mut self) -> Result<Total> {
        match self {
            Self::Need { total, .. } => total.take().ok_or_else(ended),
            Self::Ahead { addition_thread } => {
                addition_thread.tell(ThreadMessage::Now)?;
                addition_thread.totals.recv().map_err(|_| ended())?
            }
        }
    }
}

impl AdditionThread {
    fn new(store: Store) -> Self {
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
        Self { wanted: Some(wanted), totals, thread: Some(thread) }
    }

    fn tell(&self, wanted: ThreadMessage) -> Result<()> {
        self.wanted.as_ref().and_then(|to| to.send(wanted).ok()).ok_or_else(ended)
    }
}

impl Drop for AdditionThread {
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

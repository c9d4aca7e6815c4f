//! A worker's own connection to the job's store, on which it claims.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evenstep_c10d::{Error, Result, Store};

use super::mode::ClaimMode;
use crate::collective::HostPort;

/// What an addition came to.
#[derive(Debug, Clone, Copy)]
pub struct Total {
    /// The counter after it.
    pub total: i64,
    /// When that was known.
    pub at: Instant,
    /// How long it took, from when it was due.
    pub took: Duration,
}

/// The connection; at most one addition is on its way.
#[derive(Debug)]
pub enum Connection {
    /// Additions are made as they are asked for.
    Need { store: Store, total: Option<Total> },
    /// A thread of its own makes them.
    Ahead { asker: Asker },
}

/// Words to the thread that wait for it, at most: an addition, and that it is due now; those of the one before may still be there.
const WORDS_MAX: usize = 4;

/// A thread that adds beside the computing.
#[derive(Debug)]
pub struct Asker {
    /// None once the thread is to end.
    wanted: Option<SyncSender<Wanted>>,
    totals: Receiver<Result<Total>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is told.
#[derive(Debug, PartialEq)]
enum Wanted {
    /// Add so much to a counter then.
    Add { key: String, amount: i64, due: Instant },
    /// Whoever wants it has nothing else to do.
    Now,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// The store is gone.
    pub fn connect(at: &HostPort, mode: ClaimMode, timeout: Duration) -> Result<Self> {
        let store = Store::connect(&at.host, at.port, timeout)?;
        Ok(match mode {
            ClaimMode::Need => Self::Need { store, total: None },
            ClaimMode::Ahead => Self::Ahead { asker: Asker::new(store) },
        })
    }

    /// Whether an addition runs beside the computing.
    pub fn is_ahead(&self) -> bool {
        matches!(self, Self::Ahead { .. })
    }

    /// Adds to a counter, at `due` where that runs beside the computing; [`Connection::total`] tells what came of it.
    ///
    /// # Errors
    /// The store is gone.
    pub fn add(&mut self, key: &str, amount: i64, due: Instant) -> Result<()> {
        match self {
            Self::Need { store, total } => *total = Some(timed(store, key, amount, Instant::now())?),
            Self::Ahead { asker } => asker.tell(Wanted::Add { key: key.to_owned(), amount, due })?,
        }
        Ok(())
    }

    /// What the last addition came to, waiting for it where it runs beside.
    ///
    /// # Errors
    /// The store is gone.
    pub fn total(&mut self) -> Result<Total> {
        match self {
            Self::Need { total, .. } => total.take().ok_or_else(ended),
            Self::Ahead { asker } => {
                asker.tell(Wanted::Now)?;
                asker.totals.recv().map_err(|_| ended())?
            }
        }
    }
}

impl Asker {
    fn new(store: Store) -> Self {
        let (wanted, requests) = mpsc::sync_channel(WORDS_MAX);
        let (answer, totals) = mpsc::sync_channel(1);
        let thread = thread::spawn(move || {
            while let Ok(next) = requests.recv() {
                // Of an addition that was made before it was asked after.
                let Wanted::Add { key, amount, due } = next else { continue };
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

    fn tell(&self, wanted: Wanted) -> Result<()> {
        self.wanted.as_ref().and_then(|to| to.send(wanted).ok()).ok_or_else(ended)
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.wanted = None;
        // No thread of ours uses the store while the process ends; it has at most one addition before it.
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
    Error::Invalid { operation: "claiming", reason: "no addition is on its way".into() }
}

//! A worker's own connection to the job's store, on which it claims.

use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evenstep_c10d::{Error, Result, Store};

use crate::cli::HostPort;
use crate::hedge::ClaimMode;

/// What an addition came to.
#[derive(Debug, Clone, Copy)]
pub struct Total {
    /// The counter after it.
    pub total: i64,
    /// When that was known.
    pub at: Instant,
    /// How long it took.
    pub took: Duration,
}

/// The connection; at most one addition is on its way.
#[derive(Debug)]
pub enum Line {
    /// Additions are made as they are asked for.
    Need { store: Store, total: Option<Total> },
    /// A thread of its own makes them.
    Ahead { asker: Asker },
}

/// A thread that adds beside the computing.
#[derive(Debug)]
pub struct Asker {
    /// None once the thread is to end.
    wanted: Option<SyncSender<(String, i64)>>,
    totals: Receiver<Result<Total>>,
    thread: Option<JoinHandle<()>>,
}

impl Line {
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

    /// Adds to a counter; [`Line::total`] tells what came of it.
    ///
    /// # Errors
    /// The store is gone.
    pub fn add(&mut self, key: &str, amount: i64) -> Result<()> {
        match self {
            Self::Need { store, total } => *total = Some(timed(store, key, amount)?),
            Self::Ahead { asker } => {
                let wanted = asker.wanted.as_ref().ok_or_else(ended)?;
                wanted.send((key.to_owned(), amount)).map_err(|_| ended())?;
            }
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
            Self::Ahead { asker } => asker.totals.recv().map_err(|_| ended())?,
        }
    }
}

impl Asker {
    fn new(store: Store) -> Self {
        let (wanted, requests) = mpsc::sync_channel::<(String, i64)>(1);
        let (answer, totals) = mpsc::sync_channel(1);
        let thread = thread::spawn(move || {
            for (key, amount) in requests {
                if answer.send(timed(&store, &key, amount)).is_err() {
                    break;
                }
            }
        });
        Self { wanted: Some(wanted), totals, thread: Some(thread) }
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

fn timed(store: &Store, key: &str, amount: i64) -> Result<Total> {
    let begun = Instant::now();
    let total = store.add(key, amount)?;
    let at = Instant::now();
    Ok(Total { total, at, took: at - begun })
}

fn ended() -> Error {
    Error::Invalid { operation: "claiming", reason: "no addition is on its way".into() }
}

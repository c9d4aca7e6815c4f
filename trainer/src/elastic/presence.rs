//! Heartbeats: each worker increments a counter in the store while its process runs, whether or not it
//! trains.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use evenstep_c10d::{Result, Store};

use super::log::{self, arrivals_name};
use super::round::Token;

/// Interval of heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);
/// A life without a heartbeat for this long is considered over.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);

/// List of the tokens of lives that are over, written by the launcher or by a worker that leaves.
pub const ENDED_LIVES: &str = "gone";

/// This worker's heartbeats, and its watch of the next round.
#[derive(Debug)]
pub struct Presence {
    next_round: Arc<AtomicU64>,
    /// The round that a worker waits in, plus one; 0 for none.
    called: Arc<AtomicU64>,
    _stop: Sender<()>,
}

impl Presence {
    /// Starts sending heartbeats over a separate connection.
    pub fn begin(store: Store, token: &str) -> Self {
        let (next_round, called) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (stop, stopped) = mpsc::channel();
        let (watched, call, pulse) = (next_round.clone(), called.clone(), heartbeat_key(token));
        thread::spawn(move || {
            let beat = || -> Result<()> {
                store.add(&pulse, 1)?;
                let round = watched.load(Ordering::Relaxed);
                if log::count(&store, &arrivals_name(round))? > 0 {
                    call.store(round + 1, Ordering::Relaxed);
                }
                Ok(())
            };
            // If the store is unreachable, heartbeats have no receiver; the next user of the store reports
            // the error.
            while beat().is_ok() && stopped.recv_timeout(HEARTBEAT_INTERVAL) == Err(RecvTimeoutError::Timeout)
            {
            }
        });
        Self { next_round, called, _stop: stop }
    }

    /// Starts watching for arrivals in this round.
    pub fn watch(&self, round: u64) {
        self.next_round.store(round, Ordering::Relaxed);
    }

    /// Returns whether a worker waits in the watched round.
    pub fn is_worker_waiting(&self) -> bool {
        self.called.load(Ordering::Relaxed) == self.next_round.load(Ordering::Relaxed) + 1
    }
}

/// Heartbeats of other workers.
#[derive(Debug, Default)]
pub struct Heartbeats(BTreeMap<Token, (i64, Instant)>);

impl Heartbeats {
    /// Reads the heartbeat of a life. Returns true if it has been absent for too long.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn has_timed_out(&mut self, store: &Store, token: &str, now: Instant) -> Result<bool> {
        let count = store.add(&heartbeat_key(token), 0)?;
        let last = self.0.entry(token.to_owned()).or_insert((count, now));
        if last.0 != count {
            *last = (count, now);
        }
        Ok(now.duration_since(last.1) >= HEARTBEAT_TIMEOUT)
    }
}

fn heartbeat_key(token: &str) -> String {
    format!("pulse/{token}")
}

//! Signs of life: each worker counts up in the store for as long as its process runs, whatever its training does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use evenstep_c10d::{Result, Store};

use super::log::{self, arrivals_name};
use super::round::Token;

/// A sign of life comes this often.
const BEAT: Duration = Duration::from_millis(100);
/// A life without a sign for so long is over, or as good as over.
const SILENCE: Duration = Duration::from_secs(3);

/// Lists the tokens of lives that are over, written by whoever knows: the launcher, or the worker that leaves.
pub const GONE: &str = "gone";

/// This worker's signs of life, and its eye on the next round.
#[derive(Debug)]
pub struct Presence {
    next_round: Arc<AtomicU64>,
    /// The round that somebody waits in, plus one; 0 for none.
    called: Arc<AtomicU64>,
    _stop: Sender<()>,
}

impl Presence {
    /// Begins to give signs of life over a connection of its own.
    pub fn begin(store: Store, token: &str) -> Self {
        let (next_round, called) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (stop, stopped) = mpsc::channel();
        let (watched, call, pulse) = (next_round.clone(), called.clone(), pulse_key(token));
        thread::spawn(move || {
            let beat = || -> Result<()> {
                store.add(&pulse, 1)?;
                let round = watched.load(Ordering::Relaxed);
                if log::count(&store, &arrivals_name(round))? > 0 {
                    call.store(round + 1, Ordering::Relaxed);
                }
                Ok(())
            };
            // Without a store there is nobody to give signs to; whoever needs it next will say so.
            while beat().is_ok() && stopped.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {}
        });
        Self { next_round, called, _stop: stop }
    }

    /// Watches for somebody to come to this round.
    pub fn watch(&self, round: u64) {
        self.next_round.store(round, Ordering::Relaxed);
    }

    /// Whether somebody waits in the round that is watched.
    pub fn is_called(&self) -> bool {
        self.called.load(Ordering::Relaxed) == self.next_round.load(Ordering::Relaxed) + 1
    }
}

/// The signs of life of others.
#[derive(Debug, Default)]
pub struct Pulses(BTreeMap<Token, (i64, Instant)>);

impl Pulses {
    /// Looks at a life; true where it gave no sign for too long.
    ///
    /// # Errors
    /// The store is gone.
    pub fn is_silent(&mut self, store: &Store, token: &str, now: Instant) -> Result<bool> {
        let count = store.add(&pulse_key(token), 0)?;
        let last = self.0.entry(token.to_owned()).or_insert((count, now));
        if last.0 != count {
            *last = (count, now);
        }
        Ok(now.duration_since(last.1) >= SILENCE)
    }
}

fn pulse_key(token: &str) -> String {
    format!("pulse/{token}")
}

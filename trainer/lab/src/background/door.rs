//! What the foreground and the background share: atomics only. A lock that an idle thread holds could keep the foreground
//! waiting for as long as anybody else wants the core.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What was spent until now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Samples.
    pub samples: u64,
    /// Pieces of work.
    pub pieces: u64,
    /// Wall time within them, in seconds: with what the foreground took of it on the same core.
    pub busy_s: f64,
}

impl Spent {
    /// What was spent since.
    pub fn since(self, before: Self) -> Self {
        Self {
            samples: self.samples - before.samples,
            pieces: self.pieces - before.pieces,
            busy_s: self.busy_s - before.busy_s,
        }
    }
}

/// Closed, until it is opened.
#[derive(Debug)]
pub struct Door {
    open: AtomicBool,
    ended: AtomicBool,
    in_flight: AtomicUsize,
    /// What is left of the budget, in nanoseconds; [`UNBOUNDED`] where there is none.
    left_ns: AtomicI64,
    /// What a piece takes alone: less is not worth beginning one.
    piece_ns: AtomicI64,
    samples: AtomicU64,
    pieces: AtomicU64,
    busy_ns: AtomicU64,
    behind: OnceLock<Thread>,
}

/// Three centuries.
const UNBOUNDED: i64 = i64::MAX;

impl Default for Door {
    fn default() -> Self {
        Self {
            open: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            in_flight: AtomicUsize::new(1),
            left_ns: AtomicI64::new(UNBOUNDED),
            piece_ns: AtomicI64::new(1),
            samples: AtomicU64::new(0),
            pieces: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            behind: OnceLock::new(),
        }
    }
}

impl Door {
    /// Opens or closes it, with so many pieces on a device at once.
    pub fn set(&self, open: bool, in_flight: usize) {
        self.in_flight.store(in_flight, Ordering::Relaxed);
        let was_open = self.open.swap(open, Ordering::SeqCst);
        if open && !was_open {
            self.wake();
        }
    }

    /// Opens it until fewer of these seconds are left than a piece takes; what was left before is forfeited. 0 closes it.
    pub fn allow(&self, budget_s: f64) {
        self.left_ns.store((budget_s.max(0.0) * 1e9) as i64, Ordering::SeqCst);
        self.open.store(true, Ordering::SeqCst);
        if budget_s > 0.0 {
            self.wake();
        }
    }

    /// What is left of the budget, in seconds.
    pub fn left_s(&self) -> f64 {
        self.left_ns.load(Ordering::SeqCst) as f64 / 1e9
    }

    /// What was spent.
    pub fn spent(&self) -> Spent {
        Spent {
            samples: self.samples.load(Ordering::Relaxed),
            pieces: self.pieces.load(Ordering::Relaxed),
            busy_s: Duration::from_nanos(self.busy_ns.load(Ordering::Relaxed)).as_secs_f64(),
        }
    }

    /// Pieces that may be on a device at once.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Who waits behind it.
    pub(super) fn attend(&self, thread: Thread) {
        // Set once, by whoever starts the thread.
        let _ = self.behind.set(thread);
    }

    /// What a piece takes, in microseconds.
    pub(super) fn cut(&self, piece_us: f64) {
        self.piece_ns.store(((piece_us * 1e3) as i64).max(1), Ordering::SeqCst);
    }

    /// Nothing runs behind it any more.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Waits until a piece may begin; false where none may ever again.
    pub(super) fn wait(&self) -> bool {
        loop {
            if self.ended.load(Ordering::SeqCst) {
                return false;
            }
            let affords = self.left_ns.load(Ordering::SeqCst) >= self.piece_ns.load(Ordering::SeqCst);
            if self.open.load(Ordering::SeqCst) && affords {
                return true;
            }
            thread::park();
        }
    }

    /// A piece is done.
    pub(super) fn spend(&self, samples: u64, took: Duration) {
        let took_ns = i64::try_from(took.as_nanos()).unwrap_or(i64::MAX / 2);
        if self.left_ns.load(Ordering::SeqCst) != UNBOUNDED {
            self.left_ns.fetch_sub(took_ns, Ordering::SeqCst);
        }
        self.samples.fetch_add(samples, Ordering::Relaxed);
        self.pieces.fetch_add(1, Ordering::Relaxed);
        self.busy_ns.fetch_add(took_ns.unsigned_abs(), Ordering::Relaxed);
    }

    fn wake(&self) {
        if let Some(behind) = self.behind.get() {
            behind.unpark();
        }
    }
}

//! State shared by the foreground and the background thread: atomics only, no lock.
//!
//! A background thread in the idle scheduling class could hold a lock for as long as any other thread uses
//! the core. The foreground would have to wait for it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The work of the background job so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkDone {
    /// Number of samples.
    pub samples: u64,
    /// Number of pieces of work.
    pub pieces: u64,
    /// Wall-clock time of the pieces in seconds, including the time that the foreground used on the same
    /// core.
    pub busy_s: f64,
}

impl WorkDone {
    /// Returns the difference to an earlier state.
    pub fn since(self, before: Self) -> Self {
        Self {
            samples: self.samples - before.samples,
            pieces: self.pieces - before.pieces,
            busy_s: self.busy_s - before.busy_s,
        }
    }
}

/// Controls when the background job may run. Initially closed.
#[derive(Debug)]
pub struct WorkGate {
    open: AtomicBool,
    ended: AtomicBool,
    in_flight: AtomicUsize,
    /// Remaining budget in nanoseconds; [`UNBOUNDED`] without a budget.
    left_ns: AtomicI64,
    /// Time of a piece without contention, in nanoseconds. No piece starts if the remaining budget is
    /// smaller.
    piece_ns: AtomicI64,
    samples: AtomicU64,
    pieces: AtomicU64,
    busy_ns: AtomicU64,
    behind: OnceLock<Thread>,
}

/// No budget (as a duration: about 292 years).
const UNBOUNDED: i64 = i64::MAX;

impl Default for WorkGate {
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

impl WorkGate {
    /// Opens or closes the door. `in_flight` is the maximum number of pieces queued on a device.
    pub fn set(&self, open: bool, in_flight: usize) {
        self.in_flight.store(in_flight, Ordering::Relaxed);
        let was_open = self.open.swap(open, Ordering::SeqCst);
        if open && !was_open {
            self.wake();
        }
    }

    /// Opens the door with this budget in seconds, which replaces the previous one. Pieces run while the
    /// remaining budget is at least the time of a piece. A budget of 0 stops them.
    pub fn allow(&self, budget_s: f64) {
        self.left_ns.store((budget_s.max(0.0) * 1e9) as i64, Ordering::SeqCst);
        self.open.store(true, Ordering::SeqCst);
        if budget_s > 0.0 {
            self.wake();
        }
    }

    /// Returns the remaining budget in seconds.
    pub fn left_s(&self) -> f64 {
        self.left_ns.load(Ordering::SeqCst) as f64 / 1e9
    }

    /// Returns the work of the background job so far.
    pub fn spent(&self) -> WorkDone {
        WorkDone {
            samples: self.samples.load(Ordering::Relaxed),
            pieces: self.pieces.load(Ordering::Relaxed),
            busy_s: Duration::from_nanos(self.busy_ns.load(Ordering::Relaxed)).as_secs_f64(),
        }
    }

    /// Returns the maximum number of pieces queued on a device.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Sets the thread to wake when the door opens.
    pub(super) fn set_waiting_thread(&self, thread: Thread) {
        // Only the code that starts the thread calls this, once.
        let _ = self.behind.set(thread);
    }

    /// Sets the time of a piece, in microseconds.
    pub(super) fn cut(&self, piece_us: f64) {
        self.piece_ns.store(((piece_us * 1e3) as i64).max(1), Ordering::SeqCst);
    }

    /// Ends the background job: no further piece starts.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Waits until a piece may start. Returns false after [`WorkGate::end`].
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

    /// Records a finished piece and subtracts its time from the budget.
    pub(super) fn record_piece(&self, samples: u64, took: Duration) {
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

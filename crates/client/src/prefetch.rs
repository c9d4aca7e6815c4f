//! Requests ahead of time, on a separate thread.

use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use evenstep_protocol::AllocateResponse;
use evenstep_rules::Requested;

use crate::connection::{Allocated, Connection};

/// Maximum number of allocations that wait to be collected. A training loop collects them every iteration.
const ALLOCATIONS_MAX: usize = 4;

/// The iteration to request next, and its number of samples. Only the newest is requested.
type WantedIteration = Arc<Mutex<Option<(u64, u64)>>>;

/// A thread that owns a connection and requests allocations while the training loop computes.
///
/// A caller that already has a thread calls [`Connection::request`] there instead.
#[derive(Debug)]
pub struct Prefetcher<T> {
    wanted: WantedIteration,
    wake: SyncSender<()>,
    allocations: Receiver<Allocated<T>>,
    thread: JoinHandle<Connection>,
}

impl<T: Send + 'static> Prefetcher<T> {
    /// Starts the thread, which applies `check` to every response, as in [`Connection::request`].
    pub fn start(
        mut connection: Connection,
        check: impl Fn(&AllocateResponse, &Requested<'_>) -> Result<Option<T>, String> + Send + 'static,
    ) -> Self {
        let wanted = WantedIteration::default();
        let (wake, woken) = mpsc::sync_channel(1);
        let (sender, allocations) = mpsc::sync_channel(ALLOCATIONS_MAX);
        let waiting = Arc::clone(&wanted);
        let thread = thread::spawn(move || {
            for () in woken {
                // The lock is released before the request, so that callers never wait for it.
                let next = lock(&waiting).take();
                if let Some((iteration, global_batch)) = next
                    && let Some(allocated) = connection.request(iteration, global_batch, &check)
                    && sender.send(allocated).is_err()
                {
                    break;
                }
            }
            connection
        });
        Self { wanted, wake, allocations, thread }
    }

    /// Requests an iteration of `global_batch` samples. It replaces a request that has not been sent yet,
    /// whose allocation would be too late.
    pub fn request(&self, iteration: u64, global_batch: u64) {
        *lock(&self.wanted) = Some((iteration, global_batch));
        // If the channel is full, the thread will wake up anyway.
        let _ = self.wake.try_send(());
    }

    /// Returns the newest allocation since the last call, without waiting.
    pub fn newest(&self) -> Option<Allocated<T>> {
        self.allocations.try_iter().last()
    }

    /// Ends the thread and returns the connection, or `None` if `check` panicked.
    pub fn finish(self) -> Option<Connection> {
        drop((self.wake, self.allocations));
        self.thread.join().ok()
    }
}

/// The value is replaced as a whole, so a panic of another thread leaves it valid.
fn lock(wanted: &WantedIteration) -> MutexGuard<'_, Option<(u64, u64)>> {
    wanted.lock().unwrap_or_else(PoisonError::into_inner)
}

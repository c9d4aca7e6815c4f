//! Computations that may take longer than a millisecond.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{JoinHandle, spawn, spawn_blocking};

/// Runs a computation in an async task. If it `is_long`, the runtime first moves its other tasks to another thread, so that
/// requests, timeouts and the renewal of the lease continue meanwhile.
pub fn compute<T>(is_long: bool, work: impl FnOnce() -> T) -> T {
    if is_long && Handle::try_current().is_ok_and(|runtime| has_threads(&runtime)) {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

/// Runs work that computes for long between its waits on a separate thread, in a runtime with several threads.
pub fn apart<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let runtime = Handle::current();
    if has_threads(&runtime) { spawn_blocking(move || runtime.block_on(work)) } else { spawn(work) }
}

fn has_threads(runtime: &Handle) -> bool {
    runtime.runtime_flavor() == RuntimeFlavor::MultiThread
}

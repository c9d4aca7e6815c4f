//! Computations that may take longer than a millisecond.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs a computation in an async task. If it `is_long`, the runtime first moves its other tasks to another thread, so that
/// requests, timeouts and the renewal of the lease continue meanwhile.
pub fn compute<T>(is_long: bool, work: impl FnOnce() -> T) -> T {
    let other_threads =
        Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_long && other_threads { tokio::task::block_in_place(work) } else { work() }
}

//! Bounds of the write queues.

/// Maximum number of waiting writes per queue; further writes are rejected.
pub(crate) const QUEUE_MAX: usize = 1024;
/// Maximum bytes of waiting writes per queue.
pub(crate) const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;

//! Bounds of the queues of writes.

/// Writes of each kind that may wait for the writer; more are refused, so that memory stays bounded.
pub(crate) const QUEUE_MAX: usize = 1024;
/// Bytes of each kind that may wait for the writer.
pub(crate) const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;

//! Bounds of the write queues, and of the writes that test whether the disk is full.

/// Maximum number of waiting writes per queue; further writes are rejected.
pub(crate) const QUEUE_MAX: usize = 1024;
/// Maximum bytes of waiting writes per queue.
pub(crate) const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Minimum and maximum size of a write that tests whether the store works again, in bytes. Even the smallest transaction
/// writes several pages, and a disk with less space than this is full soon.
pub(crate) const PROBE_BYTES_MIN: usize = 1024 * 1024;
pub(crate) const PROBE_BYTES_MAX: usize = 8 * 1024 * 1024;

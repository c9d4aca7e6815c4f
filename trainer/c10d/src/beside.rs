//! Which of two threads works first, on a core that they share or on a CUDA device.

use std::ffi::c_int;

use crate::Result;
use crate::ffi::{self, check};

/// Whose kernels a CUDA device takes up first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// After those of others.
    Low,
    /// Before those of others.
    High,
}

/// From now on the calling thread runs only while no other thread wants its core (Linux: `SCHED_IDLE`). It needs no privilege,
/// and may not be undone without one.
///
/// # Errors
/// The system does not allow it.
pub fn idle_class() -> Result<()> {
    // SAFETY: takes no arguments, and changes the calling thread's scheduling class only.
    check("the idle scheduling class", unsafe { ffi::evenstep_idle_class() })
}

/// From now on what the calling thread launches on a CUDA device goes to a stream of its own.
///
/// # Errors
/// There is no such device, or no CUDA.
pub fn own_stream(device: usize, priority: Priority) -> Result<()> {
    let high = c_int::from(priority == Priority::High);
    // SAFETY: plain numbers; c10 checks the device and keeps the stream for the life of the process.
    check("a CUDA stream", unsafe { ffi::evenstep_own_stream(number(device), high) })
}

/// Waits until what the calling thread launched on its stream of a CUDA device is done.
///
/// # Errors
/// There is no such device, or something that was launched failed.
pub fn wait_for_stream(device: usize) -> Result<()> {
    // SAFETY: a plain number; c10 checks the device.
    check("waiting for a CUDA stream", unsafe { ffi::evenstep_stream_wait(number(device)) })
}

/// A device number as c10 counts; one that is too large is no device's.
fn number(device: usize) -> c_int {
    c_int::try_from(device).unwrap_or(c_int::MAX).min(c_int::from(i8::MAX))
}

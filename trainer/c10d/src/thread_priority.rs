//! Priorities of threads that share a core or a CUDA device.

use std::ffi::c_int;

use crate::Result;
use crate::ffi::{self, check};

/// Scheduling priority of the kernels of a CUDA stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// After the kernels of other streams
    Low,
    /// Before the kernels of other streams
    High,
}

/// Lets the calling thread run only while no other thread needs its core (Linux: `SCHED_IDLE`). This requires
/// no privilege, but leaving the class again may require one.
///
/// # Errors
/// The operating system does not allow it.
pub fn idle_class() -> Result<()> {
    // SAFETY: takes no arguments, and changes the calling thread's scheduling class only.
    check("setting the idle scheduling class", unsafe { ffi::evenstep_idle_class() })
}

/// Sends all later work of the calling thread on a CUDA device to a separate stream.
///
/// # Errors
/// The device does not exist, or CUDA is not available.
pub fn own_stream(device: usize, priority: Priority) -> Result<()> {
    let high = c_int::from(priority == Priority::High);
    // SAFETY: plain numbers; c10 checks the device and keeps the stream for the life of the process.
    check("creating a CUDA stream", unsafe { ffi::evenstep_own_stream(number(device), high) })
}

/// Waits until the calling thread's work on its stream of a CUDA device is done.
///
/// # Errors
/// The device does not exist, or the work failed.
pub fn wait_for_stream(device: usize) -> Result<()> {
    // SAFETY: a plain number; c10 checks the device.
    check("waiting for a CUDA stream", unsafe { ffi::evenstep_stream_wait(number(device)) })
}

/// Converts a device number for c10. A number that is too large is never a valid device.
fn number(device: usize) -> c_int {
    c_int::try_from(device).unwrap_or(c_int::MAX).min(c_int::from(i8::MAX))
}

//! Priorities of threads that share a core. [`cuda::own_stream`](crate::cuda::own_stream) is for a shared device.

use crate::Result;
use crate::ffi::{self, check};

/// Lets the calling thread run only while no other thread needs its core (Linux: `SCHED_IDLE`). This requires
/// no privilege, but leaving the class again may require one.
///
/// # Errors
/// The operating system does not allow it.
pub fn idle_class() -> Result<()> {
    // SAFETY: takes no arguments, and changes the calling thread's scheduling class only.
    check("setting the idle scheduling class", unsafe { ffi::evenstep_idle_class() })
}

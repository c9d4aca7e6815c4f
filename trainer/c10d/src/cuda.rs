//! CUDA devices, as far as tch does not cover them. Devices have libtorch's numbers, from 0.
//!
//! The same binary runs with a libtorch without CUDA: all functions then return errors.

use std::ffi::c_int;
use std::fmt::Write as _;

use crate::Result;
use crate::ffi::{self, check};

/// Scheduling priority of the kernels of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// After the kernels of other streams
    Low,
    /// Before the kernels of other streams
    High,
}

/// Loads the CUDA part of libtorch.
///
/// # Errors
/// libtorch has no CUDA part (`scripts/libtorch` without `--cuda`), or a library that it needs is missing.
pub fn load() -> Result<()> {
    // SAFETY: takes no arguments and only calls dlopen, which may be called at any time from any thread.
    check("loading libtorch_cuda.so", unsafe { ffi::evenstep_cuda_load() })
}

/// Sets the device of the calling thread. Every thread that uses a device must call it: otherwise CUDA also
/// reserves memory on device 0.
///
/// # Errors
/// The device does not exist, or CUDA is not available.
pub fn set_device(device: usize) -> Result<()> {
    // SAFETY: a plain number; c10 checks the device.
    check("setting the CUDA device", unsafe { ffi::evenstep_cuda_set_device(number(device)) })
}

/// Sends all later work of the calling thread on a device to a separate stream.
///
/// # Errors
/// The device does not exist, or CUDA is not available.
pub fn own_stream(device: usize, priority: Priority) -> Result<()> {
    let high = c_int::from(priority == Priority::High);
    // SAFETY: plain numbers; c10 checks the device and keeps the stream for the life of the process.
    check("creating a CUDA stream", unsafe { ffi::evenstep_cuda_own_stream(number(device), high) })
}

/// Waits until the calling thread's work on its stream of a device is done. Work of other streams, such as
/// background work, may still run.
///
/// # Errors
/// The device does not exist, or the work failed.
pub fn wait_for_stream(device: usize) -> Result<()> {
    // SAFETY: a plain number; c10 checks the device.
    check("waiting for a CUDA stream", unsafe { ffi::evenstep_cuda_stream_wait(number(device)) })
}

/// Returns the largest number of bytes that tensors of this process have used on a device.
///
/// # Errors
/// The process has not used the device, or CUDA is not available.
pub fn peak_bytes(device: usize) -> Result<u64> {
    let mut bytes = 0;
    // SAFETY: c10 checks the device; `bytes` is valid for writing.
    let code = unsafe { ffi::evenstep_cuda_peak_bytes(number(device), &mut bytes) };
    check("reading the peak memory of a CUDA device", code)?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Returns memory that libtorch keeps for later tensors to the driver, on all devices.
///
/// # Errors
/// CUDA is not available.
pub fn empty_cache() -> Result<()> {
    // SAFETY: takes no arguments; c10 locks its allocator.
    check("emptying the CUDA cache", unsafe { ffi::evenstep_cuda_empty_cache() })
}

/// Returns the UUID of a device in NVML's form without its prefix (`GPU-` or `MIG-`), such as
/// `53a1c6ff-42ed-9f8d-1b5e-0c7a3a5b8d7e`.
///
/// NVML's index of a GPU differs from libtorch's number, which depends on `CUDA_VISIBLE_DEVICES` and
/// `CUDA_DEVICE_ORDER`. The UUID is the same in both.
///
/// # Errors
/// The driver is not installed, or the device does not exist.
pub fn uuid(device: usize) -> Result<String> {
    let mut bytes = [0; 16];
    // SAFETY: the driver checks the device; `bytes` is valid for writing the 16 bytes of a UUID.
    let code = unsafe { ffi::evenstep_cuda_uuid(number(device), bytes.as_mut_ptr()) };
    check("reading the UUID of a CUDA device", code)?;
    Ok(hyphenated(bytes))
}

/// Formats a UUID: 8, 4, 4, 4 and 12 hexadecimal digits.
fn hyphenated(bytes: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Converts a device number for c10. A number that is too large is never a valid device.
fn number(device: usize) -> c_int {
    c_int::try_from(device).unwrap_or(c_int::MAX).min(c_int::from(i8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_the_form_of_nvml() {
        let bytes = std::array::from_fn(|index| 0x0f + 0x10 * index as u8);
        assert_eq!(hyphenated(bytes), "0f1f2f3f-4f5f-6f7f-8f9f-afbfcfdfefff");
    }
}

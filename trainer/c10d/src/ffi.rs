//! The C functions of `shim/shim.cpp`, and the conversion of their errors.

use std::ffi::{CStr, CString, c_char, c_int};
use std::time::Duration;

use torch_sys::C_tensor;

use crate::{Error, Result};

/// An `intrusive_ptr<c10d::Store>` on the C++ side.
#[repr(C)]
pub(crate) struct RawStore {
    _opaque: [u8; 0],
}

/// A `c10d::Backend` and its state on the C++ side.
#[repr(C)]
pub(crate) struct RawGroup {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn evenstep_last_error() -> *const c_char;
    pub(crate) fn evenstep_store_tcp(
        host: *const c_char,
        port: *mut u16,
        server: c_int,
        timeout_ms: i64,
        out: *mut *mut RawStore,
    ) -> c_int;
    pub(crate) fn evenstep_store_prefix(
        store: *mut RawStore,
        prefix: *const c_char,
        out: *mut *mut RawStore,
    ) -> c_int;
    pub(crate) fn evenstep_store_set(
        store: *mut RawStore,
        key: *const c_char,
        value: *const u8,
        size: usize,
    ) -> c_int;
    pub(crate) fn evenstep_store_get(
        store: *mut RawStore,
        key: *const c_char,
        timeout_ms: i64,
        value: *mut u8,
        capacity: usize,
        size: *mut usize,
    ) -> c_int;
    pub(crate) fn evenstep_store_add(
        store: *mut RawStore,
        key: *const c_char,
        amount: i64,
        total: *mut i64,
    ) -> c_int;
    pub(crate) fn evenstep_store_compare_set(
        store: *mut RawStore,
        key: *const c_char,
        expected: *const u8,
        expected_size: usize,
        desired: *const u8,
        desired_size: usize,
        value: *mut u8,
        capacity: usize,
        size: *mut usize,
    ) -> c_int;
    pub(crate) fn evenstep_store_check(
        store: *mut RawStore,
        key: *const c_char,
        present: *mut c_int,
    ) -> c_int;
    pub(crate) fn evenstep_store_free(store: *mut RawStore);
    pub(crate) fn evenstep_group_gloo(
        store: *mut RawStore,
        rank: c_int,
        world_size: c_int,
        timeout_ms: i64,
        interface: *const c_char,
        out: *mut *mut RawGroup,
    ) -> c_int;
    pub(crate) fn evenstep_group_nccl(
        store: *mut RawStore,
        rank: c_int,
        world_size: c_int,
        timeout_ms: i64,
        device: c_int,
        out: *mut *mut RawGroup,
    ) -> c_int;
    pub(crate) fn evenstep_group_close(group: *mut RawGroup) -> c_int;
    pub(crate) fn evenstep_group_free(group: *mut RawGroup);
    pub(crate) fn evenstep_all_reduce_sum(
        group: *mut RawGroup,
        tensor: *mut C_tensor,
        timeout_ms: i64,
    ) -> c_int;
    pub(crate) fn evenstep_broadcast(
        group: *mut RawGroup,
        tensor: *mut C_tensor,
        root: c_int,
        timeout_ms: i64,
    ) -> c_int;
    pub(crate) fn evenstep_send(
        group: *mut RawGroup,
        tensor: *mut C_tensor,
        to: c_int,
        timeout_ms: i64,
    ) -> c_int;
    pub(crate) fn evenstep_receive(
        group: *mut RawGroup,
        tensor: *mut C_tensor,
        from: c_int,
        timeout_ms: i64,
    ) -> c_int;
    pub(crate) fn evenstep_barrier(group: *mut RawGroup, timeout_ms: i64) -> c_int;
    pub(crate) fn evenstep_idle_class() -> c_int;
    pub(crate) fn evenstep_cuda_load() -> c_int;
    pub(crate) fn evenstep_cuda_set_device(device: c_int) -> c_int;
    pub(crate) fn evenstep_cuda_own_stream(device: c_int, high_priority: c_int) -> c_int;
    pub(crate) fn evenstep_cuda_stream_wait(device: c_int) -> c_int;
    pub(crate) fn evenstep_cuda_peak_bytes(device: c_int, bytes: *mut i64) -> c_int;
    pub(crate) fn evenstep_cuda_empty_cache() -> c_int;
    pub(crate) fn evenstep_cuda_uuid(device: c_int, uuid: *mut u8) -> c_int;
}

/// Converts a return code into a result with c10d's message.
pub(crate) fn check(operation: &'static str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the shim returns a NUL-terminated string that lives in this thread until its next failing call.
    let words = unsafe { CStr::from_ptr(evenstep_last_error()) }.to_string_lossy();
    Err(Error::C10d { operation, message: essential_part(&words) })
}

/// Returns the useful part of a message: without the place in c10d's sources, the C++ frames and gloo's
/// advice.
fn essential_part(words: &str) -> String {
    let line = words.lines().next().unwrap_or_default();
    let line = match line.split_once("] ") {
        Some((place, rest)) if place.starts_with("[/") => rest,
        _ => line,
    };
    let line = line.split(" This is typically caused by").next().unwrap_or_default();
    if line.is_empty() { "no reason given".to_owned() } else { line.to_owned() }
}

/// Converts a Rust string into a C string.
pub(crate) fn c_string(operation: &'static str, text: &str) -> Result<CString> {
    CString::new(text)
        .map_err(|_| Error::Invalid { operation, reason: format!("{text:?} must not hold a NUL character") })
}

/// Converts a timeout into whole milliseconds, at least one, because c10d reads 0 as no timeout.
pub(crate) fn milliseconds(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX / 4).clamp(1, i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gloo_and_c10d_errors_are_shortened() {
        let gloo = "[/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:26817. This is typically \
                    caused by a remote worker crashing.";
        assert_eq!(essential_part(gloo), "Connection closed by peer [127.0.0.1]:26817.");
        assert_eq!(
            essential_part("wait timeout after 200ms\nframe #0: c10::Error"),
            "wait timeout after 200ms"
        );
        assert_eq!(essential_part(""), "no reason given");
    }
}

//! The key-value store through which ranks find each other.

use std::ptr::{self, NonNull};
use std::time::Duration;

use crate::ffi::{self, RawStore, c_string, check, milliseconds};
use crate::{Error, Result};

/// Maximum length of a value, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// A TCPStore: one process hosts it, the others connect.
#[derive(Debug)]
pub struct Store {
    raw: NonNull<RawStore>,
    port: u16,
}

// SAFETY: c10d's stores lock inside, and the handle is a reference-counted pointer with an atomic count.
// `Sync` is omitted because it is not needed.
unsafe impl Send for Store {}

impl Store {
    /// Hosts a store on `host:port`. Port 0 picks a free port; see [`Store::port`]. The store lives as long
    /// as this value and its prefixed views.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn host(host: &str, port: u16, timeout: Duration) -> Result<Self> {
        Self::tcp("hosting the store", host, port, true, timeout)
    }

    /// Connects to the store at `host:port`.
    ///
    /// # Errors
    /// No store responds within `timeout`.
    pub fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self> {
        Self::tcp("connecting to the store", host, port, false, timeout)
    }

    fn tcp(
        operation: &'static str,
        host: &str,
        mut port: u16,
        server: bool,
        timeout: Duration,
    ) -> Result<Self> {
        let host = c_string(operation, host)?;
        let mut raw = ptr::null_mut();
        // SAFETY: `host` is NUL-terminated and outlives the call; `port` and `raw` are valid for writing.
        let code = unsafe {
            ffi::evenstep_store_tcp(host.as_ptr(), &mut port, server.into(), milliseconds(timeout), &mut raw)
        };
        check(operation, code)?;
        Self::adopt(operation, raw, port)
    }

    fn adopt(operation: &'static str, raw: *mut RawStore, port: u16) -> Result<Self> {
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::Invalid { operation, reason: "c10d returned no store".into() })?;
        Ok(Self { raw, port })
    }

    /// Returns a view of the store in which every key starts with `prefix`. Each new group needs its own
    /// prefix.
    ///
    /// # Errors
    /// `prefix` contains a NUL character.
    pub fn prefix(&self, prefix: &str) -> Result<Self> {
        const OPERATION: &str = "prefixing the store";
        let prefix = c_string(OPERATION, prefix)?;
        let mut raw = ptr::null_mut();
        // SAFETY: `self.raw` is a live handle, `prefix` is NUL-terminated, `raw` is valid for writing.
        let code = unsafe { ffi::evenstep_store_prefix(self.as_raw(), prefix.as_ptr(), &mut raw) };
        check(OPERATION, code)?;
        Self::adopt(OPERATION, raw, self.port)
    }

    /// Returns the port in use.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets a key.
    ///
    /// # Errors
    /// The value is longer than [`VALUE_BYTES_MAX`], or the store is unreachable.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        const OPERATION: &str = "setting a key of the store";
        bounded(OPERATION, key, value)?;
        let key = c_string(OPERATION, key)?;
        // SAFETY: the handle is live, `key` is NUL-terminated, and `value` is valid for reading its length.
        let code =
            unsafe { ffi::evenstep_store_set(self.as_raw(), key.as_ptr(), value.as_ptr(), value.len()) };
        check(OPERATION, code)
    }

    /// Waits until a key is set, and returns its value.
    ///
    /// # Errors
    /// The key is not set within `timeout`, or the store is unreachable.
    pub fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        const OPERATION: &str = "reading a key of the store";
        let key = c_string(OPERATION, key)?;
        let mut value = vec![0; VALUE_BYTES_MAX];
        let mut size = 0;
        // SAFETY: the handle is live, `key` is NUL-terminated, `value` is valid for writing the capacity given, and
        // the shim never writes more.
        let code = unsafe {
            ffi::evenstep_store_get(
                self.as_raw(),
                key.as_ptr(),
                milliseconds(timeout),
                value.as_mut_ptr(),
                value.len(),
                &mut size,
            )
        };
        check(OPERATION, code)?;
        value.truncate(size);
        Ok(value)
    }

    /// Adds to a counter, which starts at 0, and returns the new total. The operation is atomic over all
    /// ranks.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64> {
        const OPERATION: &str = "adding to a key of the store";
        let key = c_string(OPERATION, key)?;
        let mut total = 0;
        // SAFETY: the handle is live, `key` is NUL-terminated, `total` is valid for writing.
        let code = unsafe { ffi::evenstep_store_add(self.as_raw(), key.as_ptr(), amount, &mut total) };
        check(OPERATION, code)?;
        Ok(total)
    }

    /// Sets a key if it is not set, and returns its value afterwards. The operation is atomic over all ranks:
    /// if ranks set different values, one value wins and all ranks receive it.
    ///
    /// # Errors
    /// The value is empty or longer than [`VALUE_BYTES_MAX`], or the store is unreachable.
    pub fn set_once(&self, key: &str, value: &[u8]) -> Result<Vec<u8>> {
        const OPERATION: &str = "setting a key of the store once";
        bounded(OPERATION, key, value)?;
        if value.is_empty() {
            let reason = format!("{key:?}: the value must not be empty");
            return Err(Error::Invalid { operation: OPERATION, reason });
        }
        let key = c_string(OPERATION, key)?;
        let mut held = vec![0; VALUE_BYTES_MAX];
        let mut size = 0;
        // SAFETY: the handle is live, `key` is NUL-terminated, nothing is read of the empty expectation, `value` is
        // valid for reading its length, `held` for writing the capacity given, and the shim never writes more.
        let code = unsafe {
            ffi::evenstep_store_compare_set(
                self.as_raw(),
                key.as_ptr(),
                value.as_ptr(),
                0,
                value.as_ptr(),
                value.len(),
                held.as_mut_ptr(),
                held.len(),
                &mut size,
            )
        };
        check(OPERATION, code)?;
        held.truncate(size);
        Ok(held)
    }

    /// Returns whether a key is set.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn check(&self, key: &str) -> Result<bool> {
        const OPERATION: &str = "checking a key of the store";
        let key = c_string(OPERATION, key)?;
        let mut present = 0;
        // SAFETY: the handle is live, `key` is NUL-terminated, `present` is valid for writing.
        let code = unsafe { ffi::evenstep_store_check(self.as_raw(), key.as_ptr(), &mut present) };
        check(OPERATION, code)?;
        Ok(present == 1)
    }

    pub(crate) fn as_raw(&self) -> *mut RawStore {
        self.raw.as_ptr()
    }
}

fn bounded(operation: &'static str, key: &str, value: &[u8]) -> Result<()> {
    if value.len() <= VALUE_BYTES_MAX {
        return Ok(());
    }
    let reason = format!("{} bytes for {key:?}: at most {VALUE_BYTES_MAX} are allowed", value.len());
    Err(Error::Invalid { operation, reason })
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the handle is live and is not used after this.
        unsafe { ffi::evenstep_store_free(self.as_raw()) }
    }
}

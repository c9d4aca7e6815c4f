//! A narrow Rust face over libtorch's own c10d: [`Store`] (TCPStore) and [`Group`] (Gloo, and NCCL with the
//! feature `nccl`).
//!
//! All that a training loop needs of it: find the others, sum tensors, hand tensors out, send them from rank to rank,
//! wait for everybody, and get an error within the timeout when somebody is gone. Beside it, [`beside`]: which of two threads
//! a core or a device works for first. This is the only crate of evenstep with `unsafe` code.

pub mod beside;
mod ffi;
mod group;
mod store;

pub use group::{Group, WORLD_SIZE_MAX};
pub use store::{Store, VALUE_BYTES_MAX};

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// c10d reported an error: a peer is gone, a timeout passed, an address is taken.
    #[error("{operation}: {message}")]
    C10d {
        /// What was tried.
        operation: &'static str,
        /// The first line of c10d's own words.
        message: String,
    },
    /// An argument breaks a rule that c10d would not have reported well.
    #[error("{operation}: {reason}")]
    Invalid {
        /// What was tried.
        operation: &'static str,
        /// The value and the rule.
        reason: String,
    },
}

/// The result of a call into c10d.
pub type Result<T> = std::result::Result<T, Error>;

/// Loads the CUDA half of libtorch where it is installed, so that one binary serves CPU and GPU; true when it is there.
pub fn load_cuda() -> bool {
    // SAFETY: takes no arguments and only calls dlopen, which may be called at any time from any thread.
    unsafe { ffi::evenstep_load_cuda() == 1 }
}

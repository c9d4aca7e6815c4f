//! Rust bindings of libtorch's c10d: [`Store`] (TCPStore) and [`Group`] (Gloo, and NCCL with the feature
//! `nccl`).
//!
//! The bindings cover the needs of a training loop:
//!
//! - join ranks, sum and broadcast tensors, send them between ranks, and wait at a barrier
//! - report an error within the timeout if a rank is lost
//! - use CUDA devices where libtorch has them, and identify them ([`cuda`])
//! - set the priority of threads that share a core ([`thread_priority`])
//!
//! This is the only crate of evenstep with `unsafe` code.

pub mod cuda;
mod ffi;
mod group;
mod store;
pub mod thread_priority;

pub use group::{Group, WORLD_SIZE_MAX};
pub use store::{Store, VALUE_BYTES_MAX};

/// Cause of a failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Error of c10d: a peer is lost, a timeout passed, or an address is in use.
    #[error("{operation}: {message}")]
    C10d {
        /// The operation.
        operation: &'static str,
        /// First line of c10d's message.
        message: String,
    },
    /// Invalid argument that c10d would not report clearly.
    #[error("{operation}: {reason}")]
    Invalid {
        /// The operation.
        operation: &'static str,
        /// The value and the rule.
        reason: String,
    },
}

/// The result of a call into c10d.
pub type Result<T> = std::result::Result<T, Error>;

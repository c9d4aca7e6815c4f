//! The search for NVIDIA GPUs, and the threads that read them.

mod amd;
mod log_limit;
pub(crate) mod search;
mod xid;

//! NVIDIA GPUs, read through NVML, the driver's library, which is loaded at run time.
//!
//! A GPU is identified by its UUID. Values that a driver or GPU does not provide are reported as missing by name.

#[cfg(feature = "daemon")]
mod amd;
mod device;
mod error;
#[cfg(feature = "daemon")]
mod log_limit;
mod reader;
#[cfg(feature = "daemon")]
pub(crate) mod search;
mod session;
#[cfg(feature = "daemon")]
mod xid;

pub use device::NAMES;
pub use reader::{Gpu, Identity};
pub use session::Session;

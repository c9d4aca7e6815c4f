#![doc = include_str!("../README.md")]

pub mod boundary;
mod gpu_id;
pub mod reading;
pub mod source;

#[cfg(feature = "daemon")]
mod clock;
#[cfg(feature = "daemon")]
pub mod config;
#[cfg(feature = "daemon")]
pub mod daemon;
#[cfg(feature = "daemon")]
pub mod local;
#[cfg(feature = "daemon")]
pub mod metrics;
#[cfg(feature = "daemon")]
pub mod sampler;
#[cfg(feature = "daemon")]
pub mod sources;
#[cfg(feature = "daemon")]
pub mod spool;
#[cfg(feature = "daemon")]
pub mod uplink;
#[cfg(feature = "daemon")]
pub mod watch;

pub use boundary::Boundary;
pub use gpu_id::{GpuId, InvalidGpuId};
pub use reading::{MissingReason, Reading};

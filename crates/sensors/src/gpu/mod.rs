//! NVIDIA GPUs, read through NVML, the driver's library, which is loaded at run time.
//!
//! A GPU is identified by its UUID. Values that a driver or GPU does not provide are reported as missing by name.

mod device;
mod error;
mod reader;
mod session;

pub use device::NAMES;
pub use reader::{GPUS_MAX, Gpu, Identity, unknown};
pub use session::Session;

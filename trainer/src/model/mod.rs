//! Models, their gradients, and the optimizer step.
//!
//! - [`Model`]: the trait that your own model implements
//! - [`Compute`]: forward and backward passes over a worker's samples, and their duration
//! - [`Sgd`]: the optimizer step
//! - `device`: devices for computing and for the all-reduce
//! - [`ComputeError`]: failures of passes, such as memory that runs out

mod compute;
mod device;
mod memory;
mod network;
mod sgd;

pub use compute::{Compute, Computed, Pace};
pub use device::{ChosenDevice, DeviceChoice, choose, device_name, enter, reduce_device, wait};
pub use memory::{ComputeError, Work, attempt};
pub use network::{Model, evaluate, kind_of, size_of};
pub use sgd::{MOMENTUM, Sgd};

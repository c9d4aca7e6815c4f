//! Models: what is trained, its gradients, and the optimizer step.
//!
//! - [`Model`]: what you implement for your own model
//! - [`Compute`]: forward and backward over a worker's samples, and how long that took
//! - [`Sgd`]: the optimizer step
//! - `device`: where a rank computes

mod compute;
mod device;
mod network;
mod sgd;

pub use compute::{Compute, Computed, Pace};
pub use device::{DeviceChoice, choose, device_name, reduce_device};
pub use network::{Model, evaluate, kind_of, size_of};
pub use sgd::{MomentumForm, Sgd};

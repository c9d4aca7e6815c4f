//! Joining of a group of ranks.

use std::time::Duration;

use evenstep_c10d::{Group, Store};
use tch::Device;

use crate::model::reduce_device;

/// Joins a group. `interface` is this machine's address that the other ranks can reach. `within` bounds the
/// joining and every later operation.
///
/// # Errors
/// A rank does not join in time.
pub fn connect(
    interface: &str,
    device: Device,
    store: &Store,
    rank: usize,
    world_size: usize,
    within: Duration,
) -> evenstep_c10d::Result<Group> {
    match reduce_device(device) {
        Device::Cuda(index) => Group::nccl(store, rank, world_size, index, within),
        _ => Group::gloo(store, rank, world_size, interface, within),
    }
}

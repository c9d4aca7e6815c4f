//! Where a rank computes, and where it meets the others.

use std::time::Duration;

use anyhow::{Result, bail};
use evenstep_c10d::{Group, Store};
use tch::{Cuda, Device};

use crate::cli::DeviceChoice;

/// The device of a rank: the CUDA devices in turn, where there are any.
///
/// # Errors
/// CUDA is wanted and not there.
pub fn choose(choice: DeviceChoice, rank: usize) -> Result<Device> {
    let wanted = choice != DeviceChoice::Cpu;
    let devices = if wanted && evenstep_c10d::load_cuda() { Cuda::device_count() } else { 0 };
    match (choice, devices) {
        (DeviceChoice::Cuda, 0) => bail!("--device cuda: libtorch sees no CUDA device on this machine"),
        (_, 0) => Ok(Device::Cpu),
        (_, devices) => Ok(Device::Cuda(rank % devices as usize)),
    }
}

/// What is sent and summed stays on the GPU with NCCL; with Gloo it passes through host memory.
pub fn reduce_device(device: Device) -> Device {
    if cfg!(feature = "nccl") { device } else { Device::Cpu }
}

/// Joins a group; `interface` is this machine's address that the others can reach, `within` bounds the joining and everything
/// after it.
///
/// # Errors
/// Some rank does not come in time.
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

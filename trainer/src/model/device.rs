//! Devices for computing and for the all-reduce.

use anyhow::{Result, bail};
use clap::ValueEnum;
use tch::{Cuda, Device};

/// Choice of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// CUDA if available, else the CPU
    Auto,
    /// The CPU
    Cpu,
    /// CUDA; fails if it is not available
    Cuda,
}

/// Returns the device of a rank. Ranks use the CUDA devices round-robin, if CUDA is available.
///
/// # Errors
/// CUDA is required but not available.
pub fn choose(choice: DeviceChoice, rank: usize) -> Result<Device> {
    let wanted = choice != DeviceChoice::Cpu;
    let devices = if wanted && evenstep_c10d::load_cuda() { Cuda::device_count() } else { 0 };
    match (choice, devices) {
        (DeviceChoice::Cuda, 0) => bail!("--device cuda: libtorch finds no CUDA device; use --device auto"),
        (_, 0) => Ok(Device::Cpu),
        (_, devices) => Ok(Device::Cuda(rank % devices as usize)),
    }
}

/// Returns the device of the all-reduce. With NCCL the data stay on the GPU; with Gloo they pass through host
/// memory.
pub fn reduce_device(device: Device) -> Device {
    if cfg!(feature = "nccl") { device } else { Device::Cpu }
}

/// Returns the name of a device, such as `cuda:0`.
pub fn device_name(device: Device) -> String {
    match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_owned(),
    }
}

//! Where a rank computes, and where it meets the others.

use anyhow::{Result, bail};
use clap::ValueEnum;
use tch::{Cuda, Device};

/// Devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// CUDA when present.
    Auto,
    /// The CPU.
    Cpu,
    /// CUDA, or an error.
    Cuda,
}

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

/// The name of a device, such as `cuda:0`.
pub fn device_name(device: Device) -> String {
    match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_owned(),
    }
}

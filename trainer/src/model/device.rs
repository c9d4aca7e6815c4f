//! Devices for computing and for the all-reduce.

use std::path::Path;

use anyhow::{Result, bail};
use clap::ValueEnum;
use evenstep_c10d::cuda;
use tch::{Cuda, Device};

/// Exists if the kernel module of the NVIDIA driver is loaded.
const DRIVER: &str = "/proc/driver/nvidia/version";

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

/// The device of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenDevice {
    /// The device.
    pub device: Device,
    /// Why the choice `auto` means the CPU, in words for people.
    pub fallback: Option<String>,
}

/// Chooses the device of a rank, and makes it the calling thread's device. Ranks use the CUDA devices round-robin, if
/// CUDA is available.
///
/// # Errors
/// CUDA is required but not available.
pub fn choose(choice: DeviceChoice, rank: usize) -> Result<ChosenDevice> {
    let devices = if choice == DeviceChoice::Cpu { Ok(0) } else { cuda_devices() };
    let chosen = select(choice, rank, devices, Path::new(DRIVER).exists())?;
    enter(chosen.device)?;
    Ok(chosen)
}

/// Sets the calling thread's device. Every thread that uses a CUDA device must call it: otherwise CUDA also
/// reserves memory on device 0.
///
/// # Errors
/// The device does not exist.
pub fn enter(device: Device) -> evenstep_c10d::Result<()> {
    if let Device::Cuda(index) = device { cuda::set_device(index) } else { Ok(()) }
}

/// Waits until a device has done the work that the calling thread queued. On a CUDA device, work of other streams
/// may still run.
///
/// # Errors
/// The work failed.
pub fn wait(device: Device) -> evenstep_c10d::Result<()> {
    if let Device::Cuda(index) = device { cuda::wait_for_stream(index) } else { Ok(()) }
}

/// Returns the number of CUDA devices, at least 1, or why libtorch has no device.
fn cuda_devices() -> Result<usize, String> {
    if let Err(error) = cuda::load() {
        let error = error.to_string();
        let is_absent = error.contains("libtorch_cuda.so: cannot open shared object file");
        let absent = "this libtorch has no CUDA part (scripts/libtorch --cuda installs one)";
        return Err(if is_absent { absent.to_owned() } else { error });
    }
    let found = usize::try_from(Cuda::device_count()).unwrap_or(0);
    let none =
        "libtorch finds no CUDA device; check nvidia-smi, CUDA_VISIBLE_DEVICES and the driver's version";
    if found > 0 { Ok(found) } else { Err(none.to_owned()) }
}

/// Selects a device. `has_driver`: this machine has an NVIDIA driver, so you probably expect a GPU to be used.
fn select(
    choice: DeviceChoice,
    rank: usize,
    devices: Result<usize, String>,
    has_driver: bool,
) -> Result<ChosenDevice> {
    let on_cpu = |fallback| ChosenDevice { device: Device::Cpu, fallback };
    Ok(match (choice, devices) {
        (DeviceChoice::Cpu, _) => on_cpu(None),
        (DeviceChoice::Cuda, Err(why)) => bail!("--device cuda: {why}; or use --device cpu"),
        (DeviceChoice::Auto, Err(why)) if has_driver => on_cpu(Some(format!(
            "WARNING: computing on the CPU, although this machine has an NVIDIA driver: {why}; --device cuda \
             makes this an error"
        ))),
        (DeviceChoice::Auto, Err(why)) => on_cpu(Some(format!("computing on the CPU: {why}"))),
        (_, Ok(devices)) => ChosenDevice { device: Device::Cuda(rank % devices.max(1)), fallback: None },
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Result<usize, String> {
        Err("no CUDA".to_owned())
    }

    #[test]
    fn ranks_take_the_devices_in_turn() {
        for choice in [DeviceChoice::Auto, DeviceChoice::Cuda] {
            let devices = [0, 1, 2, 5].map(|rank| select(choice, rank, Ok(2), true).unwrap());
            assert_eq!(devices.clone().map(|chosen| chosen.device), [0, 1, 0, 1].map(Device::Cuda));
            assert!(devices.iter().all(|chosen| chosen.fallback.is_none()));
        }
        assert_eq!(select(DeviceChoice::Cpu, 3, Ok(2), true).unwrap().device, Device::Cpu);
    }

    #[test]
    fn the_cpu_instead_of_cuda_is_an_error_or_has_its_reason() {
        let error = select(DeviceChoice::Cuda, 0, none(), false).unwrap_err().to_string();
        assert_eq!(error, "--device cuda: no CUDA; or use --device cpu");
        let fallback = |has_driver| {
            let chosen = select(DeviceChoice::Auto, 0, none(), has_driver).unwrap();
            assert_eq!(chosen.device, Device::Cpu);
            chosen.fallback.unwrap()
        };
        assert_eq!(fallback(false), "computing on the CPU: no CUDA");
        assert!(fallback(true).starts_with("WARNING: computing on the CPU, although"), "{}", fallback(true));
        assert_eq!(select(DeviceChoice::Cpu, 0, none(), true).unwrap().fallback, None);
    }
}

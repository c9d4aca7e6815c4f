//! NVIDIA GPUs, read through NVML, the driver's library. It is loaded at the first use.
//!
//! A machine without the library has no GPUs, which is logged once. Values that a driver or GPU does not
//! provide are reported as missing by name.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use evenstep_protocol::{GpuSample, ProcessSample, driver};
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use crate::{MissingReason, Reading};

/// Maximum number of GPUs per machine.
const GPUS_MAX: u32 = 64;
/// Maximum number of reported processes per GPU.
const PROCESSES_MAX: usize = 256;

/// Time between attempts to find GPUs that NVML no longer lists.
const RETRY_EVERY: Duration = Duration::from_secs(60);

/// Name of the reading of a process's GPU memory.
const PROCESS_MEMORY: &str = "gpu_memory_bytes";

fn nvml() -> Option<&'static Nvml> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    NVML.get_or_init(|| match Nvml::init() {
        Ok(nvml) => Some(nvml),
        Err(error) => {
            tracing::info!(%error, "NVIDIA driver not found; GPU readings are disabled");
            None
        }
    })
    .as_ref()
}

/// Readers of all GPUs of this machine.
#[derive(Debug)]
pub struct Gpus<T = Gpu> {
    readers: Vec<T>,
    /// Time of the next attempt, if NVML lists fewer GPUs than there are readers.
    retry_at: Option<Instant>,
}

impl<T> Gpus<T> {
    /// Creates readers of the GPUs that `all` finds. Keeps the old readers if it finds fewer, for example because
    /// a GPU is lost: their readings are then missing with the reason.
    pub fn new(old: Option<Self>, now: Instant, all: impl FnOnce() -> Vec<T>) -> Self {
        let found = all();
        match old {
            Some(old) if found.len() < old.readers.len() => {
                let (found, known) = (found.len(), old.readers.len());
                tracing::warn!(found, known, "NVML lists fewer GPUs than before; keeping the known ones");
                Self { retry_at: Some(now + RETRY_EVERY), ..old }
            }
            _ => Self { readers: found, retry_at: None },
        }
    }

    /// Returns the readers, in NVML's order. If NVML listed too few GPUs, `all` finds them again from time to
    /// time.
    pub fn readers(&mut self, now: Instant, all: impl FnOnce() -> Vec<T>) -> &mut Vec<T> {
        if self.retry_at.is_some_and(|at| now >= at) {
            let old = Self { readers: std::mem::take(&mut self.readers), retry_at: None };
            *self = Self::new(Some(old), now, all);
        }
        &mut self.readers
    }
}

/// Reader of one GPU.
#[derive(Debug)]
pub struct Gpu {
    index: u32,
    device: nvml_wrapper::Device<'static>,
    uuid: Option<String>,
    name: Option<String>,
    processes_seen_us: u64,
}

impl Gpu {
    /// Names of all readings of the device.
    pub const NAMES: [&str; 8] = [
        driver::GPU_BUSY,
        "gpu_memory_busy",
        "gpu_memory_used_bytes",
        "gpu_memory_total_bytes",
        driver::SM_CLOCK_MHZ,
        "memory_clock_mhz",
        driver::GPU_POWER_W,
        driver::GPU_TEMPERATURE_CELSIUS,
    ];

    /// Returns a reader of the GPU with this NVML index, if it exists.
    pub fn new(index: u32) -> Option<Self> {
        let device = nvml()?.device_by_index(index).ok()?;
        let (uuid, name) = (device.uuid().ok(), device.name().ok());
        Some(Self { index, device, uuid, name, processes_seen_us: 0 })
    }

    /// Returns readers of all GPUs of this machine.
    pub fn all() -> Vec<Self> {
        let count = nvml().and_then(|nvml| nvml.device_count().ok()).unwrap_or(0);
        (0..count.min(GPUS_MAX)).filter_map(Self::new).collect()
    }

    /// Returns the NVML index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Reads the device only, as a training loop does at the boundary of an iteration.
    pub fn read_device(&self) -> Reading {
        let mut reading = Reading::default();
        let utilization = self.device.utilization_rates().map_err(MissingReason::from);
        reading.put(driver::GPU_BUSY, utilization.clone().map(|percent| f64::from(percent.gpu) / 100.0));
        reading.put("gpu_memory_busy", utilization.map(|percent| f64::from(percent.memory) / 100.0));
        let memory = self.device.memory_info().map_err(MissingReason::from);
        reading.put("gpu_memory_used_bytes", memory.clone().map(|memory| memory.used as f64));
        reading.put("gpu_memory_total_bytes", memory.map(|memory| memory.total as f64));
        let clock = |clock| self.device.clock_info(clock).map(f64::from).map_err(MissingReason::from);
        reading.put(driver::SM_CLOCK_MHZ, clock(Clock::SM));
        reading.put("memory_clock_mhz", clock(Clock::Memory));
        let power = self.device.power_usage().map_err(MissingReason::from);
        reading.put(driver::GPU_POWER_W, power.map(|milliwatts| f64::from(milliwatts) / 1e3));
        let temperature = self.device.temperature(TemperatureSensor::Gpu).map_err(MissingReason::from);
        reading.put(driver::GPU_TEMPERATURE_CELSIUS, temperature.map(f64::from));
        reading
    }

    /// Reads the device, its throttle reasons, and the processes that use it.
    pub fn read(&mut self) -> GpuSample {
        let mut reading = self.read_device();
        let throttle_reasons = match self.device.current_throttle_reasons() {
            Ok(reasons) => names_of(reasons),
            Err(error) => {
                reading.put("throttle_reasons", Err(error.into()));
                Vec::new()
            }
        };
        let processes = self.read_processes(&mut reading);
        GpuSample {
            index: self.index,
            uuid: self.uuid.clone(),
            name: self.name.clone(),
            readings: reading.readings,
            throttle_reasons,
            missing: reading.missing,
            processes,
        }
    }

    fn read_processes(&mut self, reading: &mut Reading) -> Vec<ProcessSample> {
        let running = match self.device.running_compute_processes() {
            Ok(running) => running,
            Err(error) => {
                reading.put("processes", Err(error.into()));
                return Vec::new();
            }
        };
        let busy = self.read_process_busy();
        let sample = |process: &nvml_wrapper::struct_wrappers::device::ProcessInfo| {
            let mut reading = Reading::default();
            reading.put(
                PROCESS_MEMORY,
                match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Ok(bytes as f64),
                    UsedGpuMemory::Unavailable => {
                        Err(MissingReason::Unsupported("not reported by driver".to_owned()))
                    }
                },
            );
            let idle = || {
                MissingReason::Unsupported(
                    "no driver sample of this process since the last reading".to_owned(),
                )
            };
            let busy = busy.as_ref().map_err(MissingReason::clone);
            reading.put(
                driver::GPU_BUSY,
                busy.and_then(|busy| busy.get(&process.pid).copied().ok_or_else(idle)),
            );
            let Reading { readings, missing, .. } = reading;
            ProcessSample { pid: process.pid, worker: None, readings, missing }
        };
        running.iter().take(PROCESSES_MAX).map(sample).collect()
    }

    /// Returns the mean share of time in which each process's kernels ran, over the driver's samples since
    /// the last reading.
    fn read_process_busy(&mut self) -> Result<BTreeMap<u32, f64>, MissingReason> {
        let samples = match self.device.process_utilization_stats(self.processes_seen_us) {
            Ok(samples) => samples,
            // NVML returns this error if there are no new samples.
            Err(NvmlError::NotFound) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let mut sums = BTreeMap::<u32, (f64, f64)>::new();
        for sample in samples.iter().filter(|sample| sample.sm_util <= 100) {
            self.processes_seen_us = self.processes_seen_us.max(sample.timestamp);
            let (sum, count) = sums.entry(sample.pid).or_default();
            *sum += f64::from(sample.sm_util) / 100.0;
            *count += 1.0;
        }
        Ok(sums.into_iter().map(|(pid, (sum, count))| (pid, sum / count)).collect())
    }
}

impl From<NvmlError> for MissingReason {
    fn from(error: NvmlError) -> Self {
        Self::Unsupported(format!("NVML: {error}"))
    }
}

/// Returns the names of throttle reasons, without idle, which does not slow a GPU down.
fn names_of(reasons: ThrottleReasons) -> Vec<String> {
    (reasons - ThrottleReasons::GPU_IDLE).iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The GPUs are numbers: NVML lists two, then one, and again two.
    #[test]
    fn gpus_that_are_no_longer_listed_stay_and_are_found_again() {
        let start = Instant::now();
        let gpus = Gpus::new(None, start, || vec![0, 1]);
        let mut gpus = Gpus::new(Some(gpus), start, || vec![10]);
        assert_eq!(*gpus.readers(start, || vec![20, 21]), [0, 1]);
        let retry = start + RETRY_EVERY;
        assert_eq!(*gpus.readers(retry, Vec::new), [0, 1]);
        assert_eq!(*gpus.readers(retry, || vec![20, 21]), [0, 1]);
        assert_eq!(*gpus.readers(retry + RETRY_EVERY, || vec![30, 31]), [30, 31]);
        assert_eq!(*gpus.readers(retry + 2 * RETRY_EVERY, || vec![40]), [30, 31]);
    }

    #[test]
    fn throttle_reasons_are_in_nvmls_words() {
        let reasons = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::GPU_IDLE;
        assert_eq!(names_of(reasons), ["sw_thermal_slowdown"]);
        assert!(names_of(ThrottleReasons::NONE).is_empty());
    }
}

//! The readings of a device.

use std::collections::BTreeMap;

use evenstep_protocol::{GpuGap, driver};
use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;

use crate::{MissingReason, Reading};

/// Names of the readings at the boundary of an iteration.
pub const NAMES: [&str; 9] = [
    driver::GPU_BUSY,
    "gpu_memory_busy",
    "gpu_memory_used_bytes",
    "gpu_memory_total_bytes",
    driver::SM_CLOCK_MHZ,
    "memory_clock_mhz",
    driver::GPU_POWER_W,
    driver::GPU_TEMPERATURE_CELSIUS,
    driver::GPU_THROTTLED,
];

/// Counters of errors, by NVML's field. They start when the driver is loaded.
const COUNTERS: [(u32, &str); 6] = [
    (field_id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL, "gpu_ecc_corrected_errors"),
    (field_id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL, "gpu_ecc_uncorrected_errors"),
    (field_id::NVML_FI_DEV_PCIE_REPLAY_COUNTER, "gpu_pcie_replays"),
    (field_id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, "gpu_nvlink_replays"),
    (field_id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, "gpu_nvlink_recoveries"),
    (field_id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, "gpu_nvlink_crc_errors"),
];

/// Reasons for lower clocks that are not set by a user and not due to idleness.
const SLOWING: ThrottleReasons = ThrottleReasons::SW_POWER_CAP
    .union(ThrottleReasons::HW_SLOWDOWN)
    .union(ThrottleReasons::SYNC_BOOST)
    .union(ThrottleReasons::SW_THERMAL_SLOWDOWN)
    .union(ThrottleReasons::HW_THERMAL_SLOWDOWN)
    .union(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN);

/// A reading of a device in progress. After NVML has called the device lost, it is not called any more.
pub(super) struct Readout<'a, 'nvml> {
    device: &'a Device<'nvml>,
    pub(super) reading: Reading,
    lost: Option<MissingReason>,
    /// The first error.
    failed: Option<MissingReason>,
}

impl<'a, 'nvml> Readout<'a, 'nvml> {
    pub(super) fn new(device: &'a Device<'nvml>) -> Self {
        Self { device, reading: Reading::default(), lost: None, failed: None }
    }

    /// Calls NVML.
    pub(super) fn call<T>(
        &mut self,
        read: impl FnOnce(&'a Device<'nvml>) -> Result<T, NvmlError>,
    ) -> Result<T, MissingReason> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let value = read(self.device).map_err(MissingReason::from);
        if let Err(reason) = &value {
            self.failed.get_or_insert_with(|| reason.clone());
            if matches!(reason, MissingReason::Lost(_)) {
                self.lost = Some(reason.clone());
            }
        }
        value
    }

    /// Returns why the device cannot be read; `None` if any reading has a value and it is not lost.
    pub(super) fn gap(&self) -> Option<GpuGap> {
        let failed = self.failed.as_ref().filter(|_| self.reading.readings.is_empty());
        self.lost.as_ref().or(failed).map(MissingReason::gpu_gap)
    }

    /// Reads what a training loop reads at the boundary of an iteration. Returns the reasons for lowered clocks.
    pub(super) fn boundary(&mut self) -> Vec<String> {
        let utilization = self.call(Device::utilization_rates);
        self.reading.put(driver::GPU_BUSY, utilization.clone().map(|percent| f64::from(percent.gpu) / 100.0));
        self.reading.put("gpu_memory_busy", utilization.map(|percent| f64::from(percent.memory) / 100.0));
        self.memory();
        for (name, clock) in [(driver::SM_CLOCK_MHZ, Clock::SM), ("memory_clock_mhz", Clock::Memory)] {
            let clock = self.call(|device| device.clock_info(clock));
            self.reading.put(name, clock.map(f64::from));
        }
        let power = self.call(Device::power_usage);
        self.reading.put(driver::GPU_POWER_W, power.map(|milliwatts| f64::from(milliwatts) / 1e3));
        let temperature = self.call(|device| device.temperature(TemperatureSensor::Gpu));
        self.reading.put(driver::GPU_TEMPERATURE_CELSIUS, temperature.map(f64::from));
        let reasons = self.call(Device::current_throttle_reasons);
        let throttled = reasons.clone().map(|reasons| f64::from(u8::from(reasons.intersects(SLOWING))));
        self.reading.put(driver::GPU_THROTTLED, throttled);
        reasons.map(names_of).unwrap_or_default()
    }

    /// Reads the memory of the device or MIG instance.
    pub(super) fn memory(&mut self) {
        let memory = self.call(Device::memory_info);
        self.reading.put("gpu_memory_used_bytes", memory.clone().map(|memory| memory.used as f64));
        self.reading.put("gpu_memory_total_bytes", memory.map(|memory| memory.total as f64));
    }

    /// Reads the counters of errors.
    pub(super) fn counters(&mut self) {
        let fields = COUNTERS.map(|(field, _)| FieldId(field));
        let counts = self.call(|device| device.field_values_for(&fields));
        let mut counts = counts.map(Vec::into_iter);
        for (_, name) in COUNTERS {
            let count = match &mut counts {
                Ok(counts) => match counts.next() {
                    Some(count) => count
                        .and_then(|count| count.value)
                        .map(|value| number(&value))
                        .map_err(MissingReason::from),
                    None => Err(MissingReason::Driver("NVML returned too few values".to_owned())),
                },
                Err(reason) => Err(reason.clone()),
            };
            self.reading.put(name, count);
        }
    }
}

fn number(value: &SampleValue) -> f64 {
    match *value {
        SampleValue::F64(value) => value,
        SampleValue::U32(value) => f64::from(value),
        SampleValue::U64(value) => value as f64,
        SampleValue::I64(value) => value as f64,
    }
}

/// Returns the names of throttle reasons, without idle, which does not slow a GPU down.
fn names_of(reasons: ThrottleReasons) -> Vec<String> {
    (reasons - ThrottleReasons::GPU_IDLE).iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect()
}

/// Returns the mean share of time in which each process's kernels ran, over the driver's samples since `seen_us`,
/// which then is the time of the last one.
pub(super) fn process_busy(device: &Device<'_>, seen_us: &mut u64) -> Result<BTreeMap<u32, f64>, NvmlError> {
    let samples = match device.process_utilization_stats(*seen_us) {
        Ok(samples) => samples,
        // NVML returns this error if there are no new samples.
        Err(NvmlError::NotFound) => Vec::new(),
        Err(error) => return Err(error),
    };
    let mut sums = BTreeMap::<u32, (f64, f64)>::new();
    for sample in samples.iter().filter(|sample| sample.sm_util <= 100) {
        *seen_us = sample.timestamp.max(*seen_us);
        let (sum, count) = sums.entry(sample.pid).or_default();
        *sum += f64::from(sample.sm_util) / 100.0;
        *count += 1.0;
    }
    Ok(sums.into_iter().map(|(pid, (sum, count))| (pid, sum / count)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttle_reasons_are_in_nvmls_words() {
        let reasons = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::GPU_IDLE;
        assert_eq!(names_of(reasons), ["sw_thermal_slowdown"]);
        assert!(names_of(ThrottleReasons::NONE).is_empty());
        let chosen = ThrottleReasons::APPLICATIONS_CLOCKS_SETTING | ThrottleReasons::DISPLAY_CLOCK_SETTING;
        assert!(!SLOWING.intersects(chosen | ThrottleReasons::GPU_IDLE));
    }
}

//! Why a worker is slow: readings from its machine, compared with those while it was healthy.

use serde::{Deserialize, Serialize};

use crate::series::READING_MAX;

/// The middle of full speed and of the speed of a slow worker, as a share of the expected speed.
pub(super) const SLOW: f64 = 0.82;
/// Share of the iteration above which waiting for the data loader is a sufficient cause.
const LOADER_SHARE: f64 = 1.0 - SLOW;
/// Largest share of waiting that counts.
const WAITING_MAX: f64 = 0.99;

/// Readings from one iteration. Absent readings are not included in the averages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StragglerReadings {
    /// SM clock of the worker's GPU in MHz.
    pub sm_clock_mhz: Option<f64>,
    /// Temperature of the worker's GPU in degrees Celsius.
    pub gpu_temperature_celsius: Option<f64>,
    /// Share of time in which at least one task of the machine waited for a core.
    pub cpu_stall: Option<f64>,
    /// Seconds per second that the worker's threads waited for a core.
    pub run_queue_wait: Option<f64>,
    /// Share of the periods of the CPU quota in which the worker's cgroup was throttled.
    pub cpu_throttled: Option<f64>,
    /// Share of time in which at least one task waited for memory.
    pub memory_stall: Option<f64>,
    /// Share of the iteration that the worker waited for data.
    pub loader_share: Option<f64>,
}

impl StragglerReadings {
    fn each(&mut self) -> [&mut Option<f64>; 7] {
        [
            &mut self.sm_clock_mhz,
            &mut self.gpu_temperature_celsius,
            &mut self.cpu_stall,
            &mut self.run_queue_wait,
            &mut self.cpu_throttled,
            &mut self.memory_stall,
            &mut self.loader_share,
        ]
    }

    pub(super) fn is_valid(mut self) -> bool {
        self.each().iter().all(|reading| reading.is_none_or(|reading| reading.abs() <= READING_MAX))
    }

    /// Whether any of them is from an agent. The share of waiting for data is from the worker.
    pub(super) fn is_of_agent(self) -> bool {
        Self { loader_share: None, ..self } != Self::default()
    }

    pub(super) fn average(&mut self, mut now: Self, weight: f64) {
        for (mean, now) in self.each().into_iter().zip(now.each()) {
            *mean = match (*mean, *now) {
                (Some(mean), Some(now)) => Some(mean + weight * (now - mean)),
                (mean, now) => now.or(mean),
            };
        }
    }

    /// Returns the log of the share of the iteration in which the worker did not wait for data.
    pub fn log_busy(&self) -> f64 {
        (1.0 - self.loader_share.unwrap_or(0.0).clamp(0.0, WAITING_MAX)).ln()
    }
}

/// Cause of a slow worker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Cause {
    /// The clock of the GPU is lower than while the worker was healthy.
    Throttling {
        /// Ratio of the clock to its value while the worker was healthy.
        clock_ratio: f64,
        /// Temperature in degrees Celsius, if known.
        celsius: Option<f64>,
    },
    /// The worker waits for a core.
    CpuContention {
        /// Share of time that the worker waits for a core.
        waiting: f64,
        /// Share of the periods in which the CPU limit of the worker stops it, if it does.
        throttled: Option<f64>,
    },
    /// The worker waits for the data loader.
    LoaderWait {
        /// Share of the iteration that the worker waits for data.
        waiting: f64,
    },
    /// The machine waits for memory.
    MemoryPressure {
        /// Share of time that the machine waits for memory.
        waiting: f64,
    },
    /// No driver explains the slow-down.
    Unknown,
}

impl Cause {
    /// Returns the log of the speed ratio that the readings of the machine explain.
    pub(super) fn log_ratio(self) -> Option<f64> {
        match self {
            Self::Throttling { clock_ratio, .. } => Some(clock_ratio.ln()),
            Self::CpuContention { waiting, .. } | Self::MemoryPressure { waiting } => {
                Some((1.0 - waiting.min(WAITING_MAX)).ln())
            }
            // All workers may wait for the same storage.
            Self::LoaderWait { .. } | Self::Unknown => None,
        }
    }

    /// Returns the first cause that applies, from the most to the least specific.
    pub(super) fn of(now: &StragglerReadings, healthy: &StragglerReadings) -> Self {
        let StragglerReadings {
            sm_clock_mhz,
            gpu_temperature_celsius,
            cpu_stall,
            run_queue_wait,
            cpu_throttled,
            memory_stall,
            loader_share,
        } = *now;
        let risen = |now: Option<f64>, before: Option<f64>, least: f64| {
            now.filter(|now| *now > least && *now > 1.5 * before.unwrap_or(0.0))
        };
        let clock_ratio = sm_clock_mhz.zip(healthy.sm_clock_mhz).map(|(now, before)| now / before);
        if let Some(clock_ratio) = clock_ratio.filter(|ratio| *ratio < 0.93) {
            return Self::Throttling { clock_ratio, celsius: gpu_temperature_celsius };
        }
        if let Some(waiting) = loader_share.filter(|share| *share > LOADER_SHARE) {
            return Self::LoaderWait { waiting };
        }
        if let Some(waiting) = risen(memory_stall, healthy.memory_stall, 0.05) {
            return Self::MemoryPressure { waiting };
        }
        let waiting =
            [risen(run_queue_wait, healthy.run_queue_wait, 0.1), risen(cpu_stall, healthy.cpu_stall, 0.1)];
        let throttled = risen(cpu_throttled, healthy.cpu_throttled, 0.1);
        match waiting.into_iter().flatten().reduce(f64::max).or(throttled) {
            Some(waiting) => Self::CpuContention { waiting, throttled },
            None => Self::Unknown,
        }
    }
}

//! Reading of one worker at the boundary of an iteration.

use std::time::Instant;

use evenstep_protocol::driver;

#[cfg(feature = "gpu")]
use crate::GpuId;
use crate::counter::Lookback;
#[cfg(feature = "gpu")]
use crate::gpu::{self, Gpu};
use crate::host::Host;
use crate::process::Process;
use crate::{MissingReason, Reading};

/// Reader of a worker's machine, process and GPU. The names of readings are those of
/// [`evenstep_protocol::driver`].
#[derive(Debug)]
pub struct Boundary {
    host: Host,
    process: Process,
    other: OtherCpu,
    #[cfg(feature = "gpu")]
    gpu: Option<(GpuId, Result<Gpu, MissingReason>)>,
}

impl Boundary {
    /// Creates a reader for the process `pid`.
    pub fn new(pid: u32) -> Self {
        Self {
            host: Host::new(),
            process: Process::new(pid),
            other: OtherCpu::default(),
            #[cfg(feature = "gpu")]
            gpu: None,
        }
    }

    /// Also reads a GPU or MIG instance.
    ///
    /// A GPU that cannot be found is not an error: its readings are missing, with the reason.
    #[cfg(feature = "gpu")]
    #[must_use]
    pub fn with_gpu(self, id: GpuId) -> Self {
        let found = Gpu::find(&id);
        Self { gpu: Some((id, found)), ..self }
    }

    /// Reads all sources. Shares and rates cover the window since the last call, that is, the iteration.
    pub fn read(&mut self, now: Instant) -> Reading {
        let mut reading = self.host.read(now);
        reading.extend(self.process.read(now));
        let at_now = |cpu_s: f64| (now, cpu_s);
        let other = self.other.read(self.host.busy_s().map(at_now), self.process.cpu_s().map(at_now));
        reading.put(driver::OTHER_CPU, other);
        #[cfg(feature = "gpu")]
        match &self.gpu {
            Some((id, Ok(gpu))) => reading.extend(gpu.read_device(id).0),
            Some((_, Err(gap))) => reading.extend(Reading::gap(&gpu::NAMES, gap)),
            None => {}
        }
        reading
    }
}

/// The time of a reading, and the CPU time until then in seconds.
pub type CpuTime = (Instant, f64);

/// CPU time of everything on the machine except one process, in cores.
#[derive(Debug, Default)]
pub struct OtherCpu {
    /// CPU time of the machine since the start, in seconds, and of the process with the time of its reading.
    cpu_s: Lookback<(f64, CpuTime)>,
}

impl OtherCpu {
    /// Returns the difference to values of both at least [`crate::TICK_LOOKBACK`] ago, because the
    /// machine's CPU time is counted in ticks. `busy` is the machine's, `own` the process's. Each has its own
    /// window, because the two are read on different threads.
    ///
    /// # Errors
    /// Why the difference is missing, such as a missing value or no earlier one.
    pub fn read(&mut self, busy: Option<CpuTime>, own: Option<CpuTime>) -> Result<f64, MissingReason> {
        let ((busy_at, busy_s), (own_at, own_s)) = match (busy, own) {
            (Some(busy), Some(own)) => (busy, own),
            (busy, _) => {
                self.cpu_s.forget();
                let which = if busy.is_none() { driver::CPU_BUSY } else { driver::OWN_CPU };
                return Err(MissingReason::Unsupported(format!("needs {which}, which is missing")));
            }
        };
        let (window_s, (busy_then_s, (own_then, own_then_s))) =
            self.cpu_s.advance(busy_at, (busy_s, (own_at, own_s)))?;
        let own_window_s = own_at.saturating_duration_since(own_then).as_secs_f64();
        if own_window_s == 0.0 {
            return Err(MissingReason::EmptyWindow);
        }
        // Rounding of ticks can make the difference slightly negative on an idle machine.
        Ok(((busy_s - busy_then_s) / window_s - (own_s - own_then_s) / own_window_s).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_driver_of_a_cpu_worker_is_read() {
        let mut boundary = Boundary::new(std::process::id());
        let start = Instant::now();
        boundary.read(start);
        let reading = boundary.read(start + Duration::from_millis(150));
        let expected = [
            driver::RUN_QUEUE_WAIT,
            driver::OWN_CPU,
            driver::OTHER_CPU,
            driver::PROCS_RUNNING,
            driver::VOLUNTARY_SWITCHES,
            driver::INVOLUNTARY_SWITCHES,
            driver::CPU_BUSY,
            driver::MEMORY_USED,
        ];
        for name in expected {
            // The CPU time may not have advanced by a tick between two readings in quick succession.
            let said = reading.readings.contains_key(name) || reading.missing[name] == "the window is empty";
            assert!(said, "{name}: {reading:?}");
        }
        assert!(reading.readings.values().all(|value| value.is_finite()));
    }

    #[cfg(feature = "gpu")]
    #[test]
    fn an_absent_gpu_is_missing_and_the_others_are_read() {
        let absent = "GPU-00000000-0000-0000-0000-000000000000".parse().unwrap();
        let mut boundary = Boundary::new(std::process::id()).with_gpu(absent);
        let reading = boundary.read(Instant::now());
        assert!(reading.missing.contains_key(driver::GPU_BUSY), "{reading:?}");
        assert!(reading.readings.contains_key(driver::PROCS_RUNNING));
    }

    #[test]
    fn an_empty_window_has_no_rates() {
        let mut boundary = Boundary::new(std::process::id());
        let start = Instant::now();
        boundary.read(start);
        let reading = boundary.read(start);
        for name in [driver::OWN_CPU, driver::RUN_QUEUE_WAIT, driver::VOLUNTARY_SWITCHES] {
            assert_eq!(reading.missing[name], MissingReason::EmptyWindow.to_string());
        }
        assert!(reading.readings.contains_key(driver::PROCS_RUNNING));
    }

    #[test]
    fn tick_based_readings_wait_for_their_look_back() {
        let mut boundary = Boundary::new(std::process::id());
        let start = Instant::now();
        boundary.read(start);
        let early = boundary.read(start + Duration::from_millis(20));
        assert!(
            early.missing.contains_key(driver::OTHER_CPU) && early.missing.contains_key(driver::CPU_BUSY)
        );
        assert!(early.readings.contains_key(driver::OWN_CPU));
    }
}

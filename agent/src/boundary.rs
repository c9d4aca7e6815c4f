//! Reading of one worker at the boundary of an iteration.

use std::time::Instant;

use evenstep_protocol::driver;

use crate::source::Lookback;
#[cfg(feature = "gpu")]
use crate::source::gpu::{self, Gpu};
use crate::source::host::Host;
use crate::source::process::Process;
use crate::{GpuId, MissingReason, Reading};

/// Reader of a worker's machine, process and GPU. The names of readings are those of
/// [`evenstep_protocol::driver`].
#[derive(Debug)]
pub struct Boundary {
    host: Host,
    process: Process,
    other: OtherCpu,
    #[cfg(feature = "gpu")]
    gpu: Option<(GpuId, Result<Gpu, MissingReason>)>,
    #[cfg(not(feature = "gpu"))]
    gpu: Option<GpuId>,
}

impl Boundary {
    /// Creates a reader for the process `pid` and, if given, this GPU or MIG instance.
    ///
    /// A GPU that cannot be found is not an error: its readings are missing, with the reason.
    pub fn new(pid: u32, gpu: Option<GpuId>) -> Self {
        Self {
            host: Host::new(),
            process: Process::new(pid),
            other: OtherCpu::default(),
            #[cfg(feature = "gpu")]
            gpu: gpu.map(|id| (id.clone(), Gpu::find(&id))),
            #[cfg(not(feature = "gpu"))]
            gpu,
        }
    }

    /// Reads all sources. Shares and rates cover the window since the last call, that is, the iteration.
    pub fn read(&mut self, now: Instant) -> Reading {
        let mut reading = self.host.read(now);
        reading.extend(self.process.read(now));
        let at_now = |cpu_s: f64| (now, cpu_s);
        let other = self.other.read(self.host.busy_s().map(at_now), self.process.cpu_s().map(at_now));
        reading.put(driver::OTHER_CPU, other);
        self.read_gpu(&mut reading);
        reading
    }

    /// Whether the process has ended or never existed; its readings are then missing.
    pub fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    #[cfg(feature = "gpu")]
    fn read_gpu(&mut self, reading: &mut Reading) {
        match &self.gpu {
            Some((id, Ok(gpu))) => reading.extend(gpu.read_device(id).0),
            Some((_, Err(gap))) => reading.extend(Reading::gap(&gpu::NAMES, gap)),
            None => {}
        }
    }

    #[cfg(not(feature = "gpu"))]
    fn read_gpu(&mut self, reading: &mut Reading) {
        if self.gpu.is_some() {
            reading.extend(without_gpus());
        }
    }
}

/// Returns that the readings of a GPU are missing in this build.
#[cfg(not(feature = "gpu"))]
pub(crate) fn without_gpus() -> Reading {
    let names = [
        driver::GPU_BUSY,
        driver::SM_CLOCK_MHZ,
        driver::GPU_POWER_W,
        driver::GPU_TEMPERATURE_CELSIUS,
        driver::GPU_THROTTLED,
    ];
    Reading::gap(&names, &MissingReason::Unsupported("built without the gpu feature".to_owned()))
}

/// The time of a reading, and the CPU time until then in seconds.
pub(crate) type CpuTime = (Instant, f64);

/// CPU time of everything on the machine except one process, in cores.
#[derive(Debug, Default)]
pub(crate) struct OtherCpu {
    /// CPU time of the machine since the start, in seconds, and of the process with the time of its reading.
    cpu_s: Lookback<(f64, CpuTime)>,
}

impl OtherCpu {
    /// Returns the difference to values of both at least [`crate::source::TICK_LOOKBACK`] ago, because the
    /// machine's CPU time is counted in ticks. `busy` is the machine's, `own` the process's. Each has its own
    /// window, because the two are read on different threads.
    pub(crate) fn read(&mut self, busy: Option<CpuTime>, own: Option<CpuTime>) -> Result<f64, MissingReason> {
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
        let mut boundary = Boundary::new(std::process::id(), None);
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

    #[test]
    fn an_absent_gpu_is_missing_and_the_others_are_read() {
        let mut boundary =
            Boundary::new(std::process::id(), "GPU-00000000-0000-0000-0000-000000000000".parse().ok());
        let reading = boundary.read(Instant::now());
        assert!(reading.missing.contains_key(driver::GPU_BUSY), "{reading:?}");
        assert!(reading.readings.contains_key(driver::PROCS_RUNNING));
    }

    #[test]
    fn tick_based_readings_wait_for_their_look_back() {
        let mut boundary = Boundary::new(std::process::id(), None);
        let start = Instant::now();
        boundary.read(start);
        let early = boundary.read(start + Duration::from_millis(20));
        assert!(
            early.missing.contains_key(driver::OTHER_CPU) && early.missing.contains_key(driver::CPU_BUSY)
        );
        assert!(early.readings.contains_key(driver::OWN_CPU));
    }
}

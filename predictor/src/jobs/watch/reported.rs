//! A worker's report of an iteration, as far as statistics and charts need it.

use evenstep_protocol::WorkerReport;
use evenstep_store::Measured;

/// A worker's report of an iteration.
#[derive(Debug, Clone, Copy)]
pub struct Reported {
    /// Samples computed.
    pub samples: u64,
    /// Forward and backward time, in seconds.
    pub compute_time_s: f64,
    /// Wait for data, in seconds.
    pub loader_wait_s: f64,
    /// Wait at the barrier, in seconds; `None` if not reported.
    pub barrier_wait_s: Option<f64>,
    /// Time of the whole step, in seconds; `None` if not reported.
    pub whole_step_s: Option<f64>,
    /// Number of iterations of its size that the report stands for; `None` if not reported.
    pub iterations: Option<f64>,
    /// Mean loss over the samples; `None` if not reported.
    pub loss: Option<f64>,
}

impl Reported {
    /// Reads the values from a report.
    pub fn of(report: &WorkerReport) -> Self {
        Self {
            samples: report.local_batch,
            compute_time_s: report.compute_time_s,
            loader_wait_s: report.loader_wait_s.unwrap_or(0.0),
            barrier_wait_s: report.barrier_wait_s,
            whole_step_s: report.step_time_s,
            iterations: report.iterations,
            loss: report.loss,
        }
    }

    /// Takes the values of a stored report.
    pub fn stored(report: &Measured) -> Self {
        Self {
            samples: report.local_batch,
            compute_time_s: report.compute_time_s,
            loader_wait_s: report.loader_wait_s.unwrap_or(0.0),
            barrier_wait_s: report.barrier_wait_s,
            whole_step_s: report.step_time_s,
            iterations: report.iterations,
            loss: report.loss,
        }
    }

    /// Time from the beginning of the iteration to the end of the barrier, in seconds.
    pub fn busy_s(&self) -> f64 {
        self.loader_wait_s + self.compute_time_s + self.barrier_wait_s.unwrap_or(0.0)
    }

    /// Samples per second of compute time; `None` for a worker without samples.
    pub fn speed(&self) -> Option<f64> {
        (self.samples > 0 && self.compute_time_s > 0.0).then(|| self.samples as f64 / self.compute_time_s)
    }
}

/// Returns the time of the whole step in seconds, if a worker reported it; `None` without a report. Otherwise it is the
/// longest time of any worker from the beginning of the iteration to the end of the barrier.
pub fn step_time_s<'a>(reports: impl Iterator<Item = &'a Reported> + Clone) -> Option<f64> {
    let whole_s = reports.clone().find_map(|report| report.whole_step_s);
    whole_s.or_else(|| reports.map(Reported::busy_s).reduce(f64::max))
}

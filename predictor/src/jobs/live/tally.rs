//! What a worker has done since this predictor has its job.

use evenstep_protocol::{Allocation, WorkerReport};

use super::steps::Done;

/// The tally of one worker.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Its position among the live workers.
    pub rank: usize,
    /// What it computes on.
    pub device: Option<String>,
    /// Samples that it computed.
    pub samples: u64,
    /// Time it computed, in seconds.
    pub compute_s: f64,
    /// Time it waited at the barrier, in seconds.
    pub barrier_wait_s: f64,
    /// Time it waited for its data, in seconds.
    pub loader_wait_s: f64,
    /// Its latest report, where there was one.
    pub latest: Option<Latest>,
}

/// The latest report of a worker, beside what had been predicted for it.
#[derive(Debug, Clone, Copy)]
pub struct Latest {
    /// When it came, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// The iteration.
    pub iteration: u64,
    /// What it reported.
    pub done: Done,
    /// What had been predicted, where that is known.
    pub predicted: Predicted,
}

/// What an answer had predicted of a worker.
#[derive(Debug, Clone, Copy, Default)]
pub struct Predicted {
    /// Speed, in samples per second of compute time.
    pub speed: Option<f64>,
    /// Lower end of its 90 % interval.
    pub lower: Option<f64>,
    /// Upper end of its 90 % interval.
    pub upper: Option<f64>,
    /// Compute time, in seconds.
    pub compute_time_s: Option<f64>,
}

impl Predicted {
    fn of(share: &Allocation) -> Self {
        Self {
            speed: share.predicted_speed_samples_per_s,
            lower: share.speed_lower_samples_per_s,
            upper: share.speed_upper_samples_per_s,
            compute_time_s: share.predicted_compute_time_s,
        }
    }
}

impl Tally {
    /// Adds a report, with its worker's share of the iteration where that is still known.
    pub fn add(&mut self, report: &WorkerReport, share: Option<&Allocation>, at_unix_ms: i64) {
        let done = Done::of(report);
        self.samples += done.samples;
        self.compute_s += done.compute_time_s;
        self.barrier_wait_s += done.barrier_wait_s.unwrap_or(0.0);
        self.loader_wait_s += done.loader_wait_s;
        if self.latest.is_none_or(|latest| latest.iteration <= report.iteration) {
            let predicted = share.map(Predicted::of).unwrap_or_default();
            self.latest = Some(Latest { at_unix_ms, iteration: report.iteration, done, predicted });
        }
    }
}

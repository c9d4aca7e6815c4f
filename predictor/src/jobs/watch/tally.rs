//! Totals of a worker since this predictor owns its job.

use evenstep_protocol::{Allocation, WorkerReport};

use super::reported::Reported;

/// Totals of one worker.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Its position among the live workers.
    pub rank: usize,
    /// The device of the worker.
    pub device: Option<String>,
    /// Samples computed.
    pub samples: u64,
    /// Compute time, in seconds.
    pub compute_s: f64,
    /// Barrier wait, in seconds.
    pub barrier_wait_s: f64,
    /// Wait for data, in seconds.
    pub loader_wait_s: f64,
    /// Number of forecasts with a report.
    pub forecasts: u64,
    /// Sum of |actual - predicted| / predicted speed over these forecasts.
    pub forecast_error: f64,
    /// Its averaged speed over its expected speed; `None` before it is known.
    pub expected_ratio: Option<f64>,
    /// Its latest report; `None` before the first.
    pub latest: Option<Latest>,
}

/// The latest report of a worker, with the prediction for it.
#[derive(Debug, Clone, Copy)]
pub struct Latest {
    /// Time of arrival, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// The iteration.
    pub iteration: u64,
    /// The reported values.
    pub done: Reported,
    /// The prediction, as far as known.
    pub predicted: Predicted,
}

/// The prediction of an allocation for one worker.
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
    /// Adds a report, with the worker's share of the iteration if it is still in memory.
    pub fn add(&mut self, report: &WorkerReport, share: Option<&Allocation>, at_unix_ms: i64) {
        let done = Reported::of(report);
        self.samples += done.samples;
        self.compute_s += done.compute_time_s;
        self.barrier_wait_s += done.barrier_wait_s.unwrap_or(0.0);
        self.loader_wait_s += done.loader_wait_s;
        let predicted = share.map(Predicted::of).unwrap_or_default();
        if let Some((actual, predicted)) = done.speed().zip(predicted.speed) {
            self.forecasts += 1;
            self.forecast_error += (actual / predicted - 1.0).abs();
        }
        if self.latest.is_none_or(|latest| latest.iteration <= report.iteration) {
            self.latest = Some(Latest { at_unix_ms, iteration: report.iteration, done, predicted });
        }
    }
}

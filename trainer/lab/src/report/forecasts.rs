//! The accuracy of the forecasts of worker speeds.

use crate::report::run::Training;
use evenstep_trainer::progress::WorkerLine;

/// The accuracy of one worker's forecasts, over the iterations after the warm-up.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecasts {
    /// Mean local batch, in samples.
    pub mean_batch: f64,
    /// Samples divided by compute time; absent if the worker computed no samples.
    pub mean_speed_samples_per_s: Option<f64>,
    /// Mean absolute forecast error relative to the measured speed; absent without forecasts.
    pub error: Option<f64>,
    /// Error of the last-value forecast (the speed of the previous iteration) over the same iterations.
    pub last_value_error: Option<f64>,
    /// Share of measured speeds inside the 90 % interval; absent without intervals.
    pub coverage: Option<f64>,
}

impl Forecasts {
    /// Computes the accuracy for the worker with this rank.
    pub fn of(training: &Training, rank: usize) -> Self {
        let lines: Vec<&WorkerLine> = training.counted().iter().map(|line| &line.workers[rank]).collect();
        let samples: u64 = lines.iter().map(|line| line.local_batch).sum();
        let seconds: f64 =
            lines.iter().filter(|line| line.local_batch > 0).map(|line| line.compute_time_s).sum();
        let errors: Vec<(f64, f64)> = lines
            .windows(2)
            .filter_map(|pair| {
                let (before, speed) = (speed(pair[0])?, speed(pair[1])?);
                let predicted = pair[1].predicted_speed_samples_per_s?;
                Some(((predicted / speed - 1.0).abs(), (before / speed - 1.0).abs()))
            })
            .collect();
        let inside = lines.iter().filter_map(|line| {
            let range = line.speed_lower_samples_per_s?..=line.speed_upper_samples_per_s?;
            Some(f64::from(u8::from(range.contains(&speed(line)?))))
        });
        Self {
            mean_batch: samples as f64 / lines.len() as f64,
            mean_speed_samples_per_s: (samples > 0).then(|| samples as f64 / seconds),
            error: mean(errors.iter().map(|(error, _)| *error)),
            last_value_error: mean(errors.iter().map(|(_, error)| *error)),
            coverage: mean(inside),
        }
    }
}

/// Returns the measured speed of a worker; `None` without samples.
pub fn speed(line: &WorkerLine) -> Option<f64> {
    (line.local_batch > 0).then(|| line.local_batch as f64 / line.compute_time_s)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

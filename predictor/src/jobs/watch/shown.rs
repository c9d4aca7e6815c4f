//! An iteration as charts show it. It is stored, so that a chart reads a few bytes for each share instead of the whole
//! allocation and all reports.

use std::collections::HashMap;

use evenstep_protocol::{AllocateResponse, StepWorker, WorkerId};
use evenstep_store::Measured;
use serde::{Deserialize, Serialize};

use super::account::{EvenStep, IterationTimes};
use super::reported::Reported;
use super::steps::mean;
use super::view::step_view;

/// Significant digits that a chart can show.
const DIGITS: i32 = 4;

/// An iteration as charts show it. Numbers have four significant digits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    /// Step time, in seconds; `None` before the first report.
    pub step_time_s: Option<f64>,
    /// Predicted step time, in seconds.
    pub predicted_step_time_s: Option<f64>,
    /// Step time with even shares, in seconds: estimated from the reports, or predicted if `even_doubt_s` is absent.
    pub even_step_time_s: Option<f64>,
    /// Standard deviation of the estimate, in seconds.
    pub even_doubt_s: Option<f64>,
    /// Number of iterations of its size that the iteration stands for.
    pub iterations: Option<f64>,
    /// Factor for the learning rate.
    pub lr_multiplier: f64,
    /// Mean loss over the samples of the workers that reported one.
    pub loss: Option<f64>,
    /// The workers, by rank.
    pub workers: Vec<ShownWorker>,
}

/// A worker in an iteration as charts show it. Stored as an array, without names: a job may have thousands of workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "Row", from = "Row")]
pub struct ShownWorker {
    /// The worker.
    pub worker: WorkerId,
    /// Number of samples allocated to it.
    pub local_batch: u64,
    /// Expected speed, in samples per second of compute time.
    pub predicted: Option<f64>,
    /// Lower end of its 90 % interval.
    pub lower: Option<f64>,
    /// Upper end of its 90 % interval.
    pub upper: Option<f64>,
    /// Measured speed, in samples per second of compute time.
    pub actual: Option<f64>,
    /// Compute time, in seconds.
    pub compute_time_s: Option<f64>,
    /// Barrier wait, in seconds.
    pub barrier_wait_s: Option<f64>,
}

type Row = (WorkerId, u64, Option<f64>, Option<f64>, Option<f64>, Option<f64>, Option<f64>, Option<f64>);

impl ShownWorker {
    fn of(worker: StepWorker) -> Self {
        Self {
            worker: worker.worker,
            local_batch: worker.local_batch,
            predicted: worker.predicted_samples_per_s.map(rounded),
            lower: worker.lower_samples_per_s.map(rounded),
            upper: worker.upper_samples_per_s.map(rounded),
            actual: worker.actual_samples_per_s.map(rounded),
            compute_time_s: worker.compute_time_s.map(rounded),
            barrier_wait_s: worker.barrier_wait_s.map(rounded),
        }
    }
}

impl From<ShownWorker> for Row {
    fn from(of: ShownWorker) -> Self {
        (
            of.worker,
            of.local_batch,
            of.predicted,
            of.lower,
            of.upper,
            of.actual,
            of.compute_time_s,
            of.barrier_wait_s,
        )
    }
}

impl From<Row> for ShownWorker {
    fn from(row: Row) -> Self {
        let (worker, local_batch, predicted, lower, upper, actual, compute_time_s, barrier_wait_s) = row;
        Self { worker, local_batch, predicted, lower, upper, actual, compute_time_s, barrier_wait_s }
    }
}

impl Shown {
    /// An iteration from the allocation that it was computed with, and its stored reports.
    pub fn stored(answer: &AllocateResponse, reports: &[Measured]) -> Self {
        let by_worker: HashMap<&WorkerId, Reported> =
            reports.iter().map(|report| (&report.worker, Reported::stored(report))).collect();
        Self::of(answer, None, |rank| by_worker.get(&answer.allocations.get(rank)?.worker).copied())
    }

    /// An iteration from the allocation that it was computed with, its estimated step time with even shares, and the report
    /// of the worker of each rank.
    pub fn of(
        answer: &AllocateResponse,
        even: Option<EvenStep>,
        reported: impl Fn(usize) -> Option<Reported>,
    ) -> Self {
        let view = step_view(answer, even, &reported);
        Self {
            step_time_s: view.step_time_s.map(rounded),
            predicted_step_time_s: view.predicted_step_time_s.map(rounded),
            even_step_time_s: view.even_step_time_s.map(rounded),
            even_doubt_s: even.map(|even| rounded(even.doubt_s)),
            iterations: (0..view.workers.len()).find_map(|rank| reported(rank)?.iterations),
            lr_multiplier: rounded(view.lr_multiplier),
            loss: view.loss.map(rounded),
            workers: view.workers.into_iter().map(ShownWorker::of).collect(),
        }
    }

    /// Its times for the account; `None` before the first report.
    pub fn times(&self) -> Option<IterationTimes> {
        Some(IterationTimes {
            took_s: self.step_time_s?,
            waited_s: mean(self.workers.iter().filter_map(|worker| worker.barrier_wait_s)),
            even: self.even(),
            iterations: self.iterations,
        })
    }

    /// Its estimated step time with even shares; `None` if it is only predicted.
    pub fn even(&self) -> Option<EvenStep> {
        let (even_s, doubt_s) = self.even_step_time_s.zip(self.even_doubt_s)?;
        Some(EvenStep { even_s, doubt_s })
    }
}

/// Rounds to four significant digits, which keeps the response small.
fn rounded(value: f64) -> f64 {
    let exponent = value.abs().log10().floor();
    // Powers of ten are exact up to 10^22, so that the result is the number nearest to the rounded decimal.
    if !(-18.0..=18.0).contains(&exponent) {
        return value;
    }
    let power = 10_f64.powi((exponent as i32 + 1 - DIGITS).abs());
    if exponent as i32 >= DIGITS { (value / power).round() * power } else { (value * power).round() / power }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::rounded;

    #[test]
    fn four_digits_are_left() {
        assert_eq!([1234.567, 0.000_123_456, -9.999_96, 0.0].map(rounded), [1235.0, 0.000_123_5, -10.0, 0.0]);
        assert_eq!(
            [f64::INFINITY, 1e300, 99_995.0, 123_456.0].map(rounded),
            [f64::INFINITY, 1e300, 100_000.0, 123_500.0]
        );
    }

    proptest! {
        /// The result is the decimal of four digits that is nearest, as a formatter finds it.
        #[test]
        fn rounding_is_that_of_decimals(value in 1e-12f64..1e12, factor in 1e-6f64..1e6) {
            let value = value * factor;
            let (ours, theirs) = (rounded(value), format!("{value:.3e}").parse::<f64>().unwrap());
            // Ties, which the product with a power of ten may round to, may differ.
            let is_tie = format!("{value:.5e}").contains("50e") || format!("{value:.5e}").contains("5e");
            prop_assert!(ours == theirs || is_tie, "{value:e}: {ours:e} instead of {theirs:e}");
        }
    }
}

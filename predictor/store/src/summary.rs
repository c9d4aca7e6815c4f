//! Summaries of old rows: counts, sums, minima and maxima per minute or hour, as pure functions.

use std::collections::BTreeMap;

use evenstep_protocol::{AllocateResponse, NodeSample, Readings, WorkerId, WorkerReport};
use serde::{Deserialize, Serialize};

use crate::encode::Json;
use crate::from_row::from_row;

/// A minute, in seconds.
pub const MINUTE_S: i64 = 60;
/// An hour, in seconds.
pub const HOUR_S: i64 = 3600;

/// Summary of a reading: count, sum, minimum, maximum.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Reading(pub u64, pub f64, pub f64, pub f64);

impl Reading {
    fn of(value: f64) -> Self {
        Self(1, value, value, value)
    }

    fn merge(&mut self, other: &Self) {
        self.0 = self.0.saturating_add(other.0);
        // JSON cannot represent infinity.
        self.1 = (self.1 + other.1).clamp(f64::MIN, f64::MAX);
        self.2 = self.2.min(other.2);
        self.3 = self.3.max(other.3);
    }
}

/// Returns the start of the step that contains a time, in milliseconds since 1970. `step_s` is the step's
/// length in seconds.
pub fn step_start(at_unix_ms: i64, step_s: i64) -> i64 {
    at_unix_ms - at_unix_ms.rem_euclid(step_s * 1000)
}

/// Key of a summary of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeStep {
    /// The node.
    pub node: String,
    /// [`MINUTE_S`] or [`HOUR_S`].
    pub step_s: i64,
    /// Start of the step, in milliseconds since 1970.
    pub at_unix_ms: i64,
}

/// Summary of a node's samples in one step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeSums {
    /// Number of samples.
    pub samples: u64,
    /// Summaries by reading. A GPU's readings are named `gpu<index>/<reading>`. Readings of processes are not kept, as
    /// processes are short-lived.
    pub readings: BTreeMap<String, Reading>,
}

impl NodeSums {
    /// Adds a sample.
    pub fn add(&mut self, sample: &NodeSample) {
        self.samples += 1;
        self.add_readings("", &sample.readings);
        for gpu in &sample.gpus {
            self.add_readings(&format!("gpu{}/", gpu.index), &gpu.readings);
        }
    }

    fn add_readings(&mut self, prefix: &str, readings: &Readings) {
        for (name, value) in readings {
            self.merge_reading(format!("{prefix}{name}"), &Reading::of(*value));
        }
    }

    fn merge_reading(&mut self, name: String, reading: &Reading) {
        self.readings.entry(name).and_modify(|sums| sums.merge(reading)).or_insert(*reading);
    }

    /// Adds the summary of other samples.
    pub fn merge(&mut self, other: &Self) {
        self.samples = self.samples.saturating_add(other.samples);
        for (name, reading) in &other.readings {
            self.merge_reading(name.clone(), reading);
        }
    }
}

/// Decodes a stored summary, without readings that cannot be read.
pub(crate) fn node_sums(samples: i64, readings: &Json) -> NodeSums {
    NodeSums { samples: samples.cast_unsigned(), readings: readings.read_entries() }
}

/// Key of a summary of a worker.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkerStep {
    /// The worker.
    pub worker: String,
    /// [`MINUTE_S`] or [`HOUR_S`].
    pub step_s: i64,
    /// Start of the step, in milliseconds since 1970.
    pub at_unix_ms: i64,
}

/// Summary of a worker's reports in one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerSums {
    /// Number of reports.
    pub reports: i64,
    /// Number of training samples that the worker computed.
    pub samples: i64,
    /// Compute time (forward and backward), in seconds.
    pub compute_time_s: f64,
    /// Barrier wait in seconds, over the reports that contain it.
    pub barrier_wait_s: f64,
    /// Time spent waiting for data in seconds, over the reports that contain it.
    pub loader_wait_s: f64,
    /// Number of reports of iterations whose allocation predicted the worker's compute time.
    pub predicted: i64,
    /// Sum of the predicted compute times, in seconds.
    pub predicted_time_s: f64,
}

from_row!(WorkerSums {
    reports,
    samples,
    compute_time_s,
    barrier_wait_s,
    loader_wait_s,
    predicted,
    predicted_time_s
});

impl WorkerSums {
    /// Adds a report. `predicted_time_s` is the compute time that the allocation predicted for the worker, in
    /// seconds.
    pub fn add(&mut self, report: &WorkerReport, predicted_time_s: Option<f64>) {
        self.merge(&Self {
            reports: 1,
            samples: i64::try_from(report.local_batch).unwrap_or(i64::MAX),
            compute_time_s: report.compute_time_s,
            barrier_wait_s: report.barrier_wait_s.unwrap_or(0.0),
            loader_wait_s: report.loader_wait_s.unwrap_or(0.0),
            predicted: i64::from(predicted_time_s.is_some()),
            predicted_time_s: predicted_time_s.unwrap_or(0.0),
        });
    }

    /// Adds the summary of other reports.
    pub fn merge(&mut self, other: &Self) {
        let seconds = |one: f64, other: f64| (one + other).min(f64::MAX);
        *self = Self {
            reports: self.reports.saturating_add(other.reports),
            samples: self.samples.saturating_add(other.samples),
            compute_time_s: seconds(self.compute_time_s, other.compute_time_s),
            barrier_wait_s: seconds(self.barrier_wait_s, other.barrier_wait_s),
            loader_wait_s: seconds(self.loader_wait_s, other.loader_wait_s),
            predicted: self.predicted.saturating_add(other.predicted),
            predicted_time_s: seconds(self.predicted_time_s, other.predicted_time_s),
        };
    }
}

/// Returns the compute time that an allocation predicted for a worker, in seconds.
pub fn predicted_time_s(answer: &AllocateResponse, worker: &WorkerId) -> Option<f64> {
    let share = answer.allocations.iter().find(|share| share.worker == *worker)?;
    share.predicted_compute_time_s.filter(|seconds| seconds.is_finite())
}

/// Merges ranges of sequence numbers (first, last) into sorted ranges that neither overlap nor touch.
pub fn ranges(mut numbers: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    numbers.sort_unstable();
    let mut joined: Vec<(i64, i64)> = Vec::new();
    for (first, last) in numbers {
        match joined.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(readings: &[(u8, i16)], gpu: i16) -> NodeSample {
        let gpu = evenstep_protocol::GpuSample {
            index: 3,
            readings: BTreeMap::from([("w".to_owned(), f64::from(gpu))]),
            ..Default::default()
        };
        NodeSample {
            readings: readings.iter().map(|(name, value)| (format!("r{name}"), f64::from(*value))).collect(),
            gpus: vec![gpu],
            ..NodeSample::default()
        }
    }

    proptest! {
        /// The sums depend neither on how samples are partitioned nor on the order in which the partial sums
        /// are merged.
        #[test]
        fn sums_do_not_depend_on_the_parts(
            samples in prop::collection::vec((prop::collection::vec((0u8..4, any::<i16>()), 0..4), any::<i16>()), 1..40),
            cuts in prop::collection::vec(0usize..5, 40),
        ) {
            let mut whole = NodeSums::default();
            let mut parts = vec![NodeSums::default(); 5];
            for ((readings, gpu), part) in samples.iter().zip(cuts) {
                whole.add(&sample(readings, *gpu));
                parts[part].add(&sample(readings, *gpu));
            }
            let merge = |mut sums: NodeSums, part: &NodeSums| { sums.merge(part); sums };
            let forth = parts.iter().fold(NodeSums::default(), merge);
            let back = parts.iter().rev().fold(NodeSums::default(), merge);
            prop_assert_eq!(&forth, &whole);
            prop_assert_eq!(&back, &whole);
            prop_assert_eq!(whole.samples, samples.len() as u64);
        }

        #[test]
        fn ranges_hold_the_same_numbers(numbers in prop::collection::vec(0i64..60, 0..50)) {
            let joined = ranges(numbers.iter().map(|number| (*number, *number)).collect());
            for number in 0..60 {
                let held = joined.iter().any(|(first, last)| (*first..=*last).contains(&number));
                prop_assert_eq!(held, numbers.contains(&number));
            }
            prop_assert!(joined.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
        }

        #[test]
        fn a_step_starts_before_its_events(at in -10_000_000i64..10_000_000_000_000, step_s in prop_oneof![Just(MINUTE_S), Just(HOUR_S)]) {
            let begin = step_start(at, step_s);
            prop_assert!(begin <= at && at - begin < step_s * 1000 && begin % (step_s * 1000) == 0);
        }
    }
}

//! The models of one worker, except its forecast.

use std::collections::BTreeMap;

use evenstep_protocol::{WorkerReport, driver};
use serde::{Deserialize, Serialize};

use super::plans::PlannedWorker;
use crate::allocate::Communication;
use crate::curve::CurveLearner;
use crate::hedge::ChunkCost;
use crate::hedge::learner::Parts;
use crate::memory::MemoryModel;
use crate::series::{COUNT_MAX, LEARNABLE, Observation};
use crate::straggler::StragglerDetector;

/// Weight of the newest report in the averages of communication.
const COMMUNICATION_WEIGHT: f64 = 0.2;

/// Change of work, in log, after which the straggler detector starts again. The detector flags a loss of 25 % of speed.
const FORM_DRIFT_MAX: f64 = 0.1;

/// The models learned from one worker's reports.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct WorkerModel {
    /// The latest processed iteration.
    pub newest: Option<u64>,
    /// Generation of its latest join, by the plans of its reports.
    joined: Option<u64>,
    /// Number of reports that each driver was missing from.
    pub missing: BTreeMap<String, u64>,
    /// Number of observations at the latest fit of a network, or at the latest attempt.
    pub fitted_at: u64,
    /// Its curve: time over batch size.
    pub curve: CurveLearner,
    /// Cost of the chunks of a tail.
    pub chunks: ChunkCost,
    /// Maximum number of samples in one iteration, over all forward and backward passes.
    pub largest: u64,
    /// Memory model: the largest batch that fits.
    pub memory: MemoryModel,
    /// Detector of slow phases.
    pub watch: StragglerDetector,
    /// Log of the change of work at the smallest and the largest batch since the straggler detector started.
    form_drift: [f64; 2],
    exposed_s: Option<f64>,
    overlapped_s: Option<f64>,
}

impl WorkerModel {
    /// Returns its communication. `begins` is the share of the compute after which gradients can be sent.
    pub fn communication(&self, begins: f64) -> Communication {
        Communication {
            exposed_s: self.exposed_s.unwrap_or(0.0),
            hidden_s: self.overlapped_s.unwrap_or(0.0),
            begins,
        }
    }

    /// Whether stored models are usable.
    pub(super) fn is_valid(&self) -> bool {
        let is_time = |time_s: f64| (0.0..=*LEARNABLE.end()).contains(&time_s);
        self.missing.values().chain([&self.fitted_at]).all(|count| *count <= COUNT_MAX)
            && self.curve.is_valid()
            && self.chunks.is_valid()
            && self.memory.is_valid()
            && self.watch.is_valid()
            && self.form_drift.iter().all(|drift| drift.is_finite())
            && [self.exposed_s, self.overlapped_s].into_iter().flatten().all(is_time)
    }

    /// Learns from a measurement and its forecast speed.
    pub fn measure(&mut self, parts: &Parts, forecast: Option<f64>) {
        let before = Works::of(&self.curve, parts);
        parts.measure(&mut self.curve, forecast);
        self.chunks.observe(parts);
        self.keep_unit(&before, parts);
    }

    /// Keeps the unit of speeds after a change of the curve's form. If the form changes the ratio of small to large batches
    /// by much, earlier speeds at other batches are not comparable, so the straggler detector starts again.
    fn keep_unit(&mut self, before: &Works, parts: &Parts) {
        if let [Some(before), Some(after)] =
            [before.seen, parts.observation(&self.curve)].map(|seen| seen.map(|seen| seen.batch))
        {
            self.curve.keep_unit(before, after);
        }
        for (drift, (batch, before)) in self.form_drift.iter_mut().zip(&before.ends) {
            *drift += (self.curve.work(*batch) / before).ln();
        }
        if self.form_drift.iter().any(|drift| drift.abs() > FORM_DRIFT_MAX) {
            self.restart_watch();
        }
    }

    fn restart_watch(&mut self) {
        self.form_drift = [0.0; 2];
        self.watch = StragglerDetector::default();
    }

    /// Learns everything in a report except its speed. `planned` is the plan for it; `None` if it is unknown. Returns
    /// true if earlier speeds do not describe the worker any more: it rejoined, perhaps on another device, or other
    /// micro-batches discard a known curve.
    pub fn take(&mut self, report: &WorkerReport, planned: Option<PlannedWorker>) -> bool {
        self.newest = Some(report.iteration);
        let joined = planned.and_then(|planned| planned.joined).or(self.joined);
        let rejoined = self.joined.is_some() && self.joined != joined;
        self.joined = joined;
        self.largest = self.largest.max(report.local_batch);
        for name in driver::ALL.iter().filter(|name| !report.drivers.contains_key(**name)) {
            match self.missing.get_mut(*name) {
                Some(count) => *count += 1,
                None => drop(self.missing.insert((*name).into(), 1)),
            }
        }
        // A batch in one pass does not show the size of micro-batches, unless it exceeds it.
        let base = report.local_batch.saturating_sub(report.tail.map_or(0, |tail| tail.samples));
        let usual = self.curve.micro_batch().filter(|size| planned.is_none() || base <= *size);
        let micro_batch = planned.and_then(|planned| planned.micro_batch).or(usual);
        let before = self.curve.work(base);
        let is_discarded = self.curve.accumulate(micro_batch);
        self.curve.keep_unit(before, self.curve.work(base));
        if rejoined || is_discarded {
            self.restart_watch();
        }
        let at_once = micro_batch.map_or(report.local_batch, |most| report.local_batch.min(most));
        self.memory.observe(at_once, report.peak_memory_bytes);
        average(&mut self.exposed_s, report.communication_s);
        average(&mut self.overlapped_s, report.overlapped_communication_s);
        rejoined || is_discarded
    }
}

/// Work of one iteration, and of the smallest and the largest batch, before a change of a curve.
struct Works {
    seen: Option<Observation>,
    ends: [(u64, f64); 2],
}

impl Works {
    fn of(curve: &CurveLearner, parts: &Parts) -> Self {
        let ends = curve.range().unwrap_or([1; 2]).map(|batch| (batch, curve.work(batch)));
        Self { seen: parts.observation(curve), ends }
    }
}

fn average(mean: &mut Option<f64>, now: Option<f64>) {
    if let Some(now) = now.filter(|now| (0.0..=*LEARNABLE.end()).contains(now)) {
        *mean = Some(mean.map_or(now, |mean| mean + COMMUNICATION_WEIGHT * (now - mean)));
    }
}

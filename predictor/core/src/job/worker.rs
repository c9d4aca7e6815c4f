//! The models of one worker, except its forecast.

use evenstep_protocol::{WorkerReport, driver};
use serde::{Deserialize, Serialize};

use super::plans::PlannedWorker;
use super::state::WorkerState;
use crate::curve::CurveLearner;
use crate::hedge::ChunkCost;
use crate::hedge::learner::Parts;
use crate::memory::MemoryModel;
use crate::series::COUNT_MAX;
use crate::straggler::StragglerDetector;

/// The models learned from one worker's reports.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct WorkerModel {
    /// The latest processed iteration.
    pub newest: Option<u64>,
    /// The latest iteration with a report, or that was planned to measure the worker.
    pub seen: Option<u64>,
    /// Number of iterations from the one before to it.
    pub gap: u64,
    /// Generation of its latest join, by the plans of its reports.
    joined: Option<u64>,
    /// Its device.
    device: Option<String>,
    /// Number of reports that each driver was missing from, in the order of [`driver::ALL`].
    pub missing: [u64; driver::ALL.len()],
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
}

impl WorkerModel {
    /// Returns the generation of its latest join, if it is known.
    pub fn joined(&self) -> Option<u64> {
        self.joined
    }

    /// Whether the models are of another device than this one. An unknown device is not another.
    pub(super) fn is_of_other_device(&self, device: Option<&str>) -> bool {
        device.is_some() && self.device.is_some() && device != self.device.as_deref()
    }

    /// Records an iteration that is planned to measure the worker, or one with a report. The first report after a planned
    /// measurement is of it, though clients may report another iteration.
    pub(super) fn see(&mut self, iteration: u64, is_planned: bool) {
        if self.seen.is_none_or(|seen| iteration > seen) {
            let is_answer = !is_planned && self.newest != self.seen;
            let before = if is_answer { self.gap } else { 0 };
            self.gap = before.saturating_add(self.seen.map_or(1, |seen| iteration - seen));
            self.seen = Some(iteration);
        }
    }

    /// Whether stored models are usable.
    pub(super) fn is_valid(&self) -> bool {
        self.missing.iter().chain([&self.fitted_at]).all(|count| *count <= COUNT_MAX)
            && self.curve.is_valid()
            && self.chunks.is_valid()
            && self.memory.is_valid()
            && self.watch.is_valid()
    }

    /// Learns from a measurement and its forecast speed. If the curve's form changes, the unit of speeds is kept, and the
    /// straggler detector's speeds at other batches are converted.
    pub fn measure(&mut self, parts: &Parts, forecast: Option<f64>) {
        let before = (parts.observation(&self.curve), self.watch.log_works(&self.curve));
        parts.measure(&mut self.curve, forecast);
        self.chunks.observe(parts);
        if let (Some(before), Some(after)) = (before.0, parts.observation(&self.curve)) {
            self.curve.keep_unit(before.batch, after.batch);
        }
        self.watch.convert(&before.1, &self.curve);
    }

    /// Learns everything in a report except its speed. `planned` is the plan for it and `state` the other state of the worker;
    /// `None` if they are unknown. `readings` begin with [`driver::ALL`]. Returns true if earlier speeds do not describe the worker any more: it rejoined, perhaps on another device, or other
    /// micro-batches discard a known curve.
    pub fn take(
        &mut self,
        report: &WorkerReport,
        planned: Option<PlannedWorker>,
        state: Option<&WorkerState>,
        readings: &[Option<f64>],
    ) -> bool {
        self.see(report.iteration, false);
        self.newest = Some(report.iteration);
        let joined = planned.and_then(|planned| planned.joined).or(self.joined);
        let rejoined = self.joined.is_some() && self.joined != joined;
        self.joined = joined;
        self.largest = self.largest.max(report.local_batch);
        for (reading, missing) in readings.iter().zip(&mut self.missing) {
            *missing += u64::from(reading.is_none());
        }
        // A batch in one pass does not show the size of micro-batches, unless it exceeds it.
        let base = report.local_batch.saturating_sub(report.tail.map_or(0, |tail| tail.samples));
        let usual = self.curve.micro_batch().filter(|size| planned.is_none() || base <= *size);
        let micro_batch = planned.and_then(|planned| planned.micro_batch).or(usual);
        let before = self.curve.work(base);
        let known = self.curve.largest();
        let is_discarded = self.curve.accumulate(micro_batch);
        let restarts = known > 0 && self.curve.largest() == 0;
        self.curve.keep_unit(before, self.curve.work(base));
        // A worker that joins again on the same device is as slow as before.
        let device = state.and_then(|state| state.device(self.joined));
        let moves = self.is_of_other_device(device);
        if device.is_some() && device != self.device.as_deref() {
            self.device = device.map(str::to_owned);
        }
        if moves || restarts {
            self.watch = StragglerDetector::default();
        }
        if moves {
            self.memory = MemoryModel::default();
        }
        let at_once = micro_batch.map_or(report.local_batch, |most| report.local_batch.min(most));
        self.memory.observe(at_once, report.peak_memory_bytes);
        rejoined || is_discarded
    }
}

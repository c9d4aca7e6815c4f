//! What is learned of one worker beside the forecast of its speed.

use std::collections::{BTreeMap, BTreeSet};

use evenstep_protocol::{WorkerReport, driver};
use serde::{Deserialize, Serialize};

use crate::allocate::Communication;
use crate::curve::{BadPoints, CurveLearner, MAX_POINTS};
use crate::hedge::ChunkCost;
use crate::hedge::learner::Parts;
use crate::memory::MemoryModel;
use crate::straggler::Watch;

/// Weight of the newest report in the averages of communication.
const COMMUNICATION_WEIGHT: f64 = 0.2;

/// The position of an iteration in the profile at the start of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfilePart {
    /// It does not belong to the profile.
    Outside,
    /// It belongs to the profile, and is not its last.
    Within,
    /// It is the last of the profile.
    Last,
}

/// What was learned from one worker's reports.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct WorkerModel {
    /// The newest iteration taken.
    pub newest: Option<u64>,
    /// How often each driver was missing.
    pub missing: BTreeMap<String, u64>,
    /// Observations at the latest fit of a network, or try at one.
    pub fitted_at: u64,
    /// How its time grows with its batch.
    pub curve: CurveLearner,
    /// What chunks of a tail cost it.
    pub chunks: ChunkCost,
    /// The most samples of an iteration, in however many passes.
    pub largest: u64,
    /// How large a batch fits.
    pub memory: MemoryModel,
    /// Whether it is slow for long.
    pub watch: Watch,
    /// Whether its reports count by cost and not by samples.
    pub counts_cost: bool,
    /// Batches of the profile under way, and their times.
    profiled: Vec<(u64, f64)>,
    exposed_s: Option<f64>,
    overlapped_s: Option<f64>,
}

impl WorkerModel {
    /// What it needs beside its compute; `begins` is the share of the compute after which gradients can travel.
    pub fn communication(&self, begins: f64) -> Communication {
        Communication {
            exposed_s: self.exposed_s.unwrap_or(0.0),
            hidden_s: self.overlapped_s.unwrap_or(0.0),
            begins,
        }
    }

    /// Learns from what was computed, and the speed that was forecast for it. The batches of a profile make one curve, once the
    /// profile is over: the first time at each size is left out.
    ///
    /// # Errors
    /// [`BadPoints`] if the batches of a profile make no curve; everything else was learned.
    pub fn measure(
        &mut self,
        parts: &Parts,
        forecast: Option<f64>,
        profile: ProfilePart,
    ) -> Result<(), BadPoints> {
        parts.measure(&mut self.curve, forecast);
        self.chunks.observe(parts);
        if profile != ProfilePart::Outside && self.profiled.len() < MAX_POINTS {
            self.profiled.push((parts.base, parts.base_s));
        }
        if profile != ProfilePart::Within && !self.profiled.is_empty() {
            let mut seen = BTreeSet::new();
            let mut points = std::mem::take(&mut self.profiled);
            points.retain(|(batch, _)| !seen.insert(*batch));
            if !points.is_empty() {
                self.curve.profile(&points)?;
            }
        }
        Ok(())
    }

    /// Learns what a report says beside its speed. `micro_batch` is the most that the worker computes at once if it accumulates
    /// gradients. Returns true if a curve that was known starts anew because of that.
    pub fn take(&mut self, report: &WorkerReport, micro_batch: Option<u64>) -> bool {
        self.newest = Some(report.iteration);
        self.largest = self.largest.max(report.local_batch);
        for name in driver::ALL.iter().filter(|name| !report.drivers.contains_key(**name)) {
            match self.missing.get_mut(*name) {
                Some(count) => *count += 1,
                None => drop(self.missing.insert((*name).into(), 1)),
            }
        }
        let at_once = micro_batch.map_or(report.local_batch, |most| report.local_batch.min(most));
        self.memory.observe(at_once, report.peak_memory_bytes);
        average(&mut self.exposed_s, report.communication_s);
        average(&mut self.overlapped_s, report.overlapped_communication_s);
        self.curve.accumulate(micro_batch)
    }
}

fn average(mean: &mut Option<f64>, now: Option<f64>) {
    if let Some(now) = now {
        *mean = Some(mean.map_or(now, |mean| mean + COMMUNICATION_WEIGHT * (now - mean)));
    }
}

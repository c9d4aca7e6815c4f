//! The models of a job's workers, and what they have seen.

use std::collections::BTreeMap;

use evenstep_protocol::{WorkerId, WorkerReport};
use serde::{Deserialize, Serialize};

use super::report::{by_iteration, drivers, parts, readings, signs};
use super::worker::{ProfilePart, WorkerModel};
use crate::allocate::Scenarios;
use crate::curve::{BadPoints, Curve, CurveLearner};
use crate::forecast::nonlinear::FittedExpert;
use crate::forecast::{Earlier, Forecast, JobForecaster};
use crate::hedge::learner::CLAIM_FIRST_S;
use crate::hedge::{ChunkCost, ClaimCost};
use crate::series::Observation;

/// How long a counter is busy with one addition, in seconds, where a claim takes no less: 50,000 claims a second, fewer than one
/// store takes on loopback (the trainer's example `claims`).
const CLAIM_BUSY_S: f64 = 2e-5;

/// Forecasts of a job, and what else its reports taught.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Models {
    forecaster: JobForecaster<WorkerId>,
    workers: BTreeMap<WorkerId, WorkerModel>,
}

/// What the job knows of a report beside its contents.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances {
    /// The most samples that the worker computes at once, if it accumulates gradients.
    pub micro_batch: Option<u64>,
    /// The position of its iteration in the profile at the start.
    pub profile: ProfilePart,
}

impl Default for Models {
    fn default() -> Self {
        Self::new()
    }
}

impl Models {
    /// Models that have seen nothing.
    pub fn new() -> Self {
        Self { forecaster: JobForecaster::new(drivers()), workers: BTreeMap::new() }
    }

    /// What they expect.
    pub fn forecaster(&self) -> &JobForecaster<WorkerId> {
        &self.forecaster
    }

    /// What is known of a worker beside its forecast; `None` before its first report.
    pub fn worker(&self, worker: &WorkerId) -> Option<&WorkerModel> {
        self.workers.get(worker)
    }

    /// What a worker is expected to do in the coming iteration: its forecast, in sample equivalents, and its time at any batch.
    pub fn expected(&self, worker: &WorkerId) -> Option<(Forecast, Curve)> {
        let forecast = self.forecaster.forecast(worker, None)?;
        Some((forecast, self.workers.get(worker)?.curve.curve_at(forecast.speed)))
    }

    /// The joint distribution of these workers' forecasts, from their recent errors.
    pub fn scenarios(&self, workers: &[WorkerId]) -> Scenarios {
        let residuals: Vec<Vec<f64>> =
            workers.iter().map(|worker| self.forecaster.residuals(worker).collect()).collect();
        Scenarios::from_residuals(&residuals)
    }

    /// What a claim costs: the mean over the workers.
    pub fn claim_cost(&self) -> ClaimCost {
        let sum: f64 = self.workers.values().map(|worker| worker.chunks.claim_s()).sum();
        let latency_s = if self.workers.is_empty() { CLAIM_FIRST_S } else { sum / self.workers.len() as f64 };
        ClaimCost { latency_s, busy_s: latency_s.min(CLAIM_BUSY_S) }
    }

    /// What chunks cost a worker, as far as that is known.
    pub fn chunk_cost(&self, worker: &WorkerId) -> ChunkCost {
        self.workers.get(worker).map_or_else(ChunkCost::default, |known| known.chunks)
    }

    /// Whether the latest reports count by cost and not by samples.
    pub fn counts_cost(&self) -> bool {
        self.workers.values().any(|worker| worker.counts_cost)
    }

    /// A departed worker has come back: what was learned of it counts for less.
    pub fn age(&mut self, worker: &WorkerId) {
        self.forecaster.age(worker);
    }

    /// Learns from reports, those of one iteration together, and the circumstances of each. Returns the workers whose profile
    /// made no curve.
    ///
    /// Two kinds of reports are left out. The first of a worker: a first iteration allocates, compiles and warms caches. One
    /// that is not newer than what the models have seen: it arrived late, after an outage.
    pub fn learn<'a>(
        &mut self,
        reports: impl IntoIterator<Item = &'a WorkerReport>,
        circumstances: impl Fn(&WorkerReport) -> Circumstances,
    ) -> Vec<(WorkerId, BadPoints)> {
        let mut failed = Vec::new();
        for mut reports in by_iteration(reports) {
            reports.retain(|report| self.is_usable(report, circumstances(report)));
            let measured =
                reports.iter().filter_map(|report| self.measure(report, circumstances(report), &mut failed));
            let outcomes: Vec<(WorkerId, Observation)> = measured.collect();
            self.forecaster.observe(&outcomes);
            for report in &reports {
                // Speeds were measured by a curve that was not known yet: they start anew.
                if circumstances(report).profile == ProfilePart::Last {
                    self.forecaster.age(&report.worker);
                }
            }
            for report in reports {
                let readings = readings(self.forecaster.drivers(), report);
                self.forecaster.boundary(&report.worker, &readings);
            }
        }
        failed
    }

    /// Takes what a report says beside its speed. Returns whether the models may learn from its speed.
    fn is_usable(&mut self, report: &WorkerReport, circumstances: Circumstances) -> bool {
        let first = !self.workers.contains_key(&report.worker);
        let known = self.workers.entry(report.worker.clone()).or_default();
        if known.newest.is_some_and(|newest| report.iteration <= newest) {
            return false;
        }
        if known.take(report, circumstances.micro_batch) {
            // Speeds were measured by a curve that holds no more: they start anew.
            self.forecaster.age(&report.worker);
        }
        !first
    }

    /// Lets the curve learn from a report, and returns the observation in sample equivalents of the curve.
    fn measure(
        &mut self,
        report: &WorkerReport,
        circumstances: Circumstances,
        failed: &mut Vec<(WorkerId, BadPoints)>,
    ) -> Option<(WorkerId, Observation)> {
        let known = self.workers.get_mut(&report.worker)?;
        let parts = parts(report);
        parts.observation(&known.curve)?;
        known.counts_cost = report.cost.is_some();
        let forecast = self.forecaster.forecast(&report.worker, None).map(|forecast| forecast.speed);
        if let Err(error) = known.measure(&parts, forecast, circumstances.profile) {
            failed.push((report.worker.clone(), error));
        }
        let observation = parts.observation(&known.curve)?;
        known.watch.observe(report.iteration, observation.speed(), signs(report));
        Some((report.worker.clone(), observation))
    }

    /// How often each driver was missing from a worker's reports.
    pub fn missing(&self, worker: &WorkerId) -> BTreeMap<String, u64> {
        self.workers.get(worker).map(|known| known.missing.clone()).unwrap_or_default()
    }

    /// Whether anything was learned of a worker yet.
    pub fn knows(&self, worker: &WorkerId) -> bool {
        self.workers.contains_key(worker)
    }

    /// Lets a worker of which nothing is known start from what was learned on a device like its own.
    pub fn warm_start(&mut self, worker: &WorkerId, earlier: Earlier) {
        self.forecaster.warm_start(worker, earlier);
    }

    /// Observations learned from, of all workers: rises with every change.
    pub fn observations(&self) -> u64 {
        self.workers.keys().map(|worker| self.forecaster.observations(worker)).sum()
    }

    /// Workers that have shown so many new observations since their network was fitted, with their curves; they count as
    /// tried from now on.
    pub fn take_due(&mut self, every: u64) -> Vec<(WorkerId, CurveLearner)> {
        let mut due = Vec::new();
        for (worker, known) in &mut self.workers {
            let observations = self.forecaster.observations(worker);
            // A worker that was away begins to count again.
            if observations < known.fitted_at {
                known.fitted_at = 0;
            }
            if observations >= known.fitted_at + every {
                known.fitted_at = observations;
                due.push((worker.clone(), known.curve.clone()));
            }
        }
        due
    }

    /// Puts fitted networks among the experts of their workers.
    pub fn install(&mut self, networks: Vec<(WorkerId, FittedExpert)>) {
        for (worker, network) in networks {
            self.forecaster.install(&worker, network);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that was away starts its count of observations anew, and so does the count to its next network.
    #[test]
    fn a_network_is_due_after_so_many_observations_also_for_who_was_away() {
        let worker = WorkerId::new("node/0").unwrap();
        let mut models = Models::new();
        let mut newest = 0;
        let mut learn = |models: &mut Models, count: u64| {
            for iteration in newest..newest + count {
                models.learn([&WorkerReport::new(worker.clone(), iteration, 8, 0.1)], |_| Circumstances {
                    micro_batch: None,
                    profile: ProfilePart::Outside,
                });
            }
            newest += count;
        };
        let due = |models: &mut Models| !models.take_due(20).is_empty();
        learn(&mut models, 20);
        assert!(!due(&mut models), "the first report is left out");
        learn(&mut models, 1);
        assert!(due(&mut models) && !due(&mut models));
        models.age(&worker);
        learn(&mut models, 19);
        assert!(!due(&mut models));
        learn(&mut models, 1);
        assert!(due(&mut models), "twenty since it is back");
    }
}

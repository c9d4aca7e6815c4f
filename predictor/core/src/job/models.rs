//! The models of a job's workers.

use std::collections::BTreeMap;

use evenstep_protocol::{WorkerId, WorkerReport};
use serde::{Deserialize, Serialize};

use super::report::{by_iteration, drivers, parts, readings, signs};
use super::worker::{ProfilePart, WorkerModel};
use crate::allocate::Scenarios;
use crate::curve::{Curve, CurveLearner, PointsError};
use crate::forecast::nonlinear::FittedExpert;
use crate::forecast::{Earlier, Forecast, JobForecaster};
use crate::hedge::learner::CLAIM_FIRST_S;
use crate::hedge::{ChunkCost, ClaimCost};
use crate::series::Observation;

/// Time that a counter is busy with one addition, in seconds, unless a claim takes less: 50,000 claims per
/// second. One store on loopback handles more (the trainer's example `claims`).
const CLAIM_BUSY_S: f64 = 2e-5;

/// Approximate memory of the models of one worker, in bytes.
const MODEL_BYTES: u64 = 56 << 10;

/// The forecaster of a job and the models of its workers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Models {
    forecaster: JobForecaster<WorkerId>,
    workers: BTreeMap<WorkerId, WorkerModel>,
}

/// Context of a report, in addition to its contents.
#[derive(Debug, Clone, Copy)]
pub struct ReportContext {
    /// Maximum number of samples per forward and backward pass, if the worker accumulates gradients.
    pub micro_batch: Option<u64>,
    /// Position of its iteration in the profile at the start.
    pub profile: ProfilePart,
}

impl Default for Models {
    fn default() -> Self {
        Self::new()
    }
}

impl Models {
    /// Creates models without observations.
    pub fn new() -> Self {
        Self { forecaster: JobForecaster::new(drivers()), workers: BTreeMap::new() }
    }

    /// Returns the forecaster.
    pub fn forecaster(&self) -> &JobForecaster<WorkerId> {
        &self.forecaster
    }

    /// Returns the models of a worker, except its forecast; `None` before its first report.
    pub fn worker(&self, worker: &WorkerId) -> Option<&WorkerModel> {
        self.workers.get(worker)
    }

    /// Returns a worker's forecast for the next iteration, in sample equivalents, and its curve (time over
    /// batch size).
    pub fn expected(&self, worker: &WorkerId) -> Option<(Forecast, Curve)> {
        let forecast = self.forecaster.forecast(worker, None)?;
        Some((forecast, self.workers.get(worker)?.curve.curve_at(forecast.speed)))
    }

    /// Returns the joint distribution of these workers' forecasts, from their recent residuals.
    pub fn scenarios(&self, workers: &[WorkerId]) -> Scenarios {
        let residuals: Vec<Vec<f64>> =
            workers.iter().map(|worker| self.forecaster.residuals(worker).collect()).collect();
        Scenarios::from_residuals(&residuals)
    }

    /// Returns the cost of a claim: the mean over the workers.
    pub fn claim_cost(&self) -> ClaimCost {
        let sum: f64 = self.workers.values().map(|worker| worker.chunks.claim_s()).sum();
        let latency_s = if self.workers.is_empty() { CLAIM_FIRST_S } else { sum / self.workers.len() as f64 };
        ClaimCost { latency_s, busy_s: latency_s.min(CLAIM_BUSY_S) }
    }

    /// Returns the cost of chunks for a worker; the default if it is unknown.
    pub fn chunk_cost(&self, worker: &WorkerId) -> ChunkCost {
        self.workers.get(worker).map_or_else(ChunkCost::default, |known| known.chunks)
    }

    /// Marks a worker that left and rejoined: its models get less weight.
    pub fn age(&mut self, worker: &WorkerId) {
        self.forecaster.age(worker);
    }

    /// Learns from reports with their context; reports of the same iteration are processed together. Returns
    /// the workers whose profile gave no curve.
    ///
    /// Speeds are not learned from two kinds of reports:
    ///
    /// - The first report of a worker, since a first iteration allocates, compiles and warms caches.
    /// - A report that is not newer than the newest one: it arrived late, after an outage.
    pub fn learn<'a>(
        &mut self,
        reports: impl IntoIterator<Item = &'a WorkerReport>,
        context: impl Fn(&WorkerReport) -> ReportContext,
    ) -> Vec<(WorkerId, PointsError)> {
        let mut failed = Vec::new();
        for mut reports in by_iteration(reports) {
            reports.retain(|report| self.is_usable(report, context(report)));
            let measured =
                reports.iter().filter_map(|report| self.measure(report, context(report), &mut failed));
            let outcomes: Vec<(WorkerId, Observation)> = measured.collect();
            self.forecaster.observe(&outcomes);
            for report in &reports {
                // Earlier speeds were measured without this curve, so the forecaster starts again.
                if context(report).profile == ProfilePart::Last {
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

    /// Updates all models except the speed. Returns whether the report may be used to learn the speed.
    fn is_usable(&mut self, report: &WorkerReport, context: ReportContext) -> bool {
        let first = !self.workers.contains_key(&report.worker);
        let known = self.workers.entry(report.worker.clone()).or_default();
        if known.newest.is_some_and(|newest| report.iteration <= newest) {
            return false;
        }
        if known.take(report, context.micro_batch) {
            // Earlier speeds were measured with a curve that is no longer valid, so the forecaster starts
            // again.
            self.forecaster.age(&report.worker);
        }
        !first
    }

    /// Updates the curve with a report. Returns the observation in sample equivalents of the curve.
    fn measure(
        &mut self,
        report: &WorkerReport,
        context: ReportContext,
        failed: &mut Vec<(WorkerId, PointsError)>,
    ) -> Option<(WorkerId, Observation)> {
        let known = self.workers.get_mut(&report.worker)?;
        let parts = parts(report);
        parts.observation(&known.curve)?;
        known.counts_cost = report.cost.is_some();
        let forecast = self.forecaster.forecast(&report.worker, None).map(|forecast| forecast.speed);
        if let Err(error) = known.measure(&parts, forecast, context.profile) {
            failed.push((report.worker.clone(), error));
        }
        let observation = parts.observation(&known.curve)?;
        known.watch.observe(report.iteration, observation.speed(), signs(report));
        Some((report.worker.clone(), observation))
    }

    /// Returns the number of a worker's reports that each driver was missing from.
    pub fn missing(&self, worker: &WorkerId) -> BTreeMap<String, u64> {
        self.workers.get(worker).map(|known| known.missing.clone()).unwrap_or_default()
    }

    /// Whether the worker has models.
    pub fn knows(&self, worker: &WorkerId) -> bool {
        self.workers.contains_key(worker)
    }

    /// Sets the starting point of an unmeasured worker: the models of a worker on the same kind of device.
    pub fn warm_start(&mut self, worker: &WorkerId, earlier: Earlier) {
        self.forecaster.warm_start(worker, earlier);
    }

    /// Returns the approximate memory of the models, in bytes.
    pub fn bytes(&self) -> u64 {
        self.workers.len() as u64 * MODEL_BYTES
    }

    /// Returns the number of observations of all workers; it rises with every change.
    pub fn observations(&self) -> u64 {
        self.workers.keys().map(|worker| self.forecaster.observations(worker)).sum()
    }

    /// Returns the workers with `every` or more new observations since the last fit of their network, with
    /// their curves. They count as fitted from now on.
    pub fn take_due_refits(&mut self, every: u64) -> Vec<(WorkerId, CurveLearner)> {
        let mut due = Vec::new();
        for (worker, known) in &mut self.workers {
            let observations = self.forecaster.observations(worker);
            // The count of a worker that was away starts again.
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

    /// Adds fitted networks to the experts of their workers.
    pub fn install(&mut self, networks: Vec<(WorkerId, FittedExpert)>) {
        for (worker, network) in networks {
            self.forecaster.install(&worker, network);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The budget for memory depends on this estimate.
    #[test]
    fn the_size_of_models_is_close_to_that_of_their_numbers() {
        let mut models = Models::new();
        for iteration in 0..200 {
            let report = |number: u64| WorkerReport {
                drivers: evenstep_protocol::driver::ALL
                    .map(|name| (name.to_owned(), iteration as f64))
                    .into(),
                ..WorkerReport::new(
                    WorkerId::new(format!("node/{number}")).unwrap(),
                    iteration,
                    8 + iteration % 3,
                    0.1,
                )
            };
            models.learn(&(0..8).map(report).collect::<Vec<_>>(), |_| ReportContext {
                micro_batch: None,
                profile: ProfilePart::Outside,
            });
        }
        let encoded = crate::job::write_models(&models).unwrap().len() as f64;
        let ratio = models.bytes() as f64 / encoded;
        assert!((0.8..2.0).contains(&ratio), "{ratio}: {encoded} bytes of 8 workers");
    }

    /// The observation count of a worker that was away starts again, so its next network is due after as many
    /// observations.
    #[test]
    fn a_network_fit_is_due_after_n_observations_also_for_returning_workers() {
        let worker = WorkerId::new("node/0").unwrap();
        let mut models = Models::new();
        let mut newest = 0;
        let mut learn = |models: &mut Models, count: u64| {
            for iteration in newest..newest + count {
                models.learn([&WorkerReport::new(worker.clone(), iteration, 8, 0.1)], |_| ReportContext {
                    micro_batch: None,
                    profile: ProfilePart::Outside,
                });
            }
            newest += count;
        };
        let due = |models: &mut Models| !models.take_due_refits(20).is_empty();
        learn(&mut models, 20);
        assert!(!due(&mut models), "the first report is not used");
        learn(&mut models, 1);
        assert!(due(&mut models) && !due(&mut models));
        models.age(&worker);
        learn(&mut models, 19);
        assert!(!due(&mut models));
        learn(&mut models, 1);
        assert!(due(&mut models), "20 observations after it rejoined");
    }
}

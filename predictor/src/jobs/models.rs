//! The models of a job's workers, and what they have seen.

use std::collections::BTreeMap;

use evenstep_core::allocate::Scenarios;
use evenstep_core::curve::{Curve, CurveLearner};
use evenstep_core::forecast::nonlinear::{FittedExpert, Training};
use evenstep_core::forecast::{Earlier, Forecast, JobForecaster};
use evenstep_core::hedge::learner::CLAIM_FIRST_S;
use evenstep_core::hedge::{ChunkCost, ClaimCost};
use evenstep_core::series::{DriverSet, Observation};
use evenstep_protocol::{WorkerId, WorkerReport, driver};
use serde::{Deserialize, Serialize};

use super::parts::{parts, tail_speedup};
use super::worker_model::{ProfilePart, WorkerModel, signs};

/// Names the layout of `Models` and [`Earlier`] in the store; a change of either takes a new number.
pub const FORMAT: u32 = 3;

/// How long a counter is busy with one addition, in seconds, where a claim takes no less: 50,000 claims a second, fewer than one
/// store takes on loopback (the trainer's example `claims`).
const CLAIM_BUSY_S: f64 = 2e-5;

/// Whether the stored models of a job can be read; their format must be [`FORMAT`].
///
/// # Errors
/// Why not.
pub fn learned_of_job(state: &[u8]) -> Result<(), String> {
    postcard::from_bytes::<Models>(state).map(drop).map_err(|error| error.to_string())
}

/// The same of what was learned on a kind of device.
///
/// # Errors
/// Why not.
pub fn learned_of_device(state: &[u8]) -> Result<(), String> {
    postcard::from_bytes::<Earlier>(state).map(drop).map_err(|error| error.to_string())
}

/// Forecasts of a job, and what else its reports taught.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Models {
    forecaster: JobForecaster<WorkerId>,
    workers: BTreeMap<WorkerId, WorkerModel>,
}

/// What a report does not say of itself.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances {
    /// The most samples that the worker computes together, where it accumulates.
    pub micro_batch: Option<u64>,
    /// Where its iteration stands to a profile.
    pub profile: ProfilePart,
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

    /// Takes new reports, those of one iteration together, and the circumstances of each.
    ///
    /// The first report of a worker is left out: a first iteration allocates, compiles and warms caches. So is one older
    /// than what the models have seen, which comes late, after an outage: it is history, not news.
    pub fn learn<'a>(
        &mut self,
        reports: impl IntoIterator<Item = &'a WorkerReport>,
        circumstances: impl Fn(&WorkerReport) -> Circumstances,
    ) {
        for reports in by_iteration(reports) {
            let news: Vec<&WorkerReport> =
                reports.into_iter().filter(|report| self.is_news(report, circumstances(report))).collect();
            let outcomes: Vec<(WorkerId, Observation)> =
                news.iter().filter_map(|report| self.measure(report, circumstances(report))).collect();
            self.forecaster.observe(&outcomes);
            for report in &news {
                // Speeds were measured by a curve that was not known yet: they start anew.
                if circumstances(report).profile == ProfilePart::Last {
                    self.forecaster.age(&report.worker);
                }
            }
            for report in news {
                let readings = readings(self.forecaster.drivers(), report);
                self.forecaster.boundary(&report.worker, &readings);
            }
        }
    }

    /// Marks a report as seen, and says whether the models may learn from it.
    fn is_news(&mut self, report: &WorkerReport, circumstances: Circumstances) -> bool {
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

    /// What a report says of speed: lets the curve learn, and gives the observation in its sample equivalents.
    fn measure(
        &mut self,
        report: &WorkerReport,
        circumstances: Circumstances,
    ) -> Option<(WorkerId, Observation)> {
        let known = self.workers.get_mut(&report.worker)?;
        let parts = parts(report);
        parts.observation(&known.curve)?;
        known.counts_cost = report.cost.is_some();
        let forecast = self.forecaster.forecast(&report.worker, None).map(|forecast| forecast.speed);
        known.measure(&parts, forecast, circumstances.profile);
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

/// What a network of each of these workers learns from, in these reports, by the curves as they are known now.
pub fn trainings<'a>(
    workers: &[(WorkerId, CurveLearner)],
    reports: impl IntoIterator<Item = &'a WorkerReport>,
) -> Vec<(WorkerId, Training)> {
    let drivers = drivers();
    let mut trainings: BTreeMap<&WorkerId, (&CurveLearner, Training)> =
        workers.iter().map(|(worker, curve)| (worker, (curve, Training::new(&drivers)))).collect();
    for report in by_iteration(reports).into_iter().flatten() {
        if let Some((curve, training)) = trainings.get_mut(&report.worker) {
            if let Some(seen) = parts(report).observation(curve) {
                training.observe(&seen);
            }
            training.boundary(&readings(&drivers, report));
        }
    }
    trainings.into_iter().map(|(worker, (_, training))| (worker.clone(), training)).collect()
}

fn by_iteration<'a>(reports: impl IntoIterator<Item = &'a WorkerReport>) -> Vec<Vec<&'a WorkerReport>> {
    let mut iterations: BTreeMap<u64, Vec<&WorkerReport>> = BTreeMap::new();
    for report in reports {
        iterations.entry(report.iteration).or_default().push(report);
    }
    iterations.into_values().collect()
}

/// What forecasts take.
fn drivers() -> DriverSet {
    DriverSet::new(driver::ALL.into_iter().chain([driver::BARRIER_WAIT_S, driver::TAIL_SPEEDUP]))
}

/// What a report tells of the iteration to come, by name: its readings, how long the worker waited, and how it did at the end.
pub fn inputs(report: &WorkerReport) -> impl Iterator<Item = (&str, f64)> {
    let waited = report.barrier_wait_s.map(|wait_s| (driver::BARRIER_WAIT_S, wait_s));
    let ended = tail_speedup(report).map(|speedup| (driver::TAIL_SPEEDUP, speedup));
    report.drivers.iter().map(|(name, value)| (name.as_str(), *value)).chain(waited).chain(ended)
}

fn readings(drivers: &DriverSet, report: &WorkerReport) -> Vec<Option<f64>> {
    drivers.readings(inputs(report))
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

//! The models of a job's workers, and what they have seen.

use std::collections::BTreeMap;

use evenstep_core::forecast::nonlinear::{FittedExpert, Training};
use evenstep_core::forecast::{Earlier, JobForecaster};
use evenstep_core::series::{DriverSet, Observation};
use evenstep_protocol::{WorkerId, WorkerReport, driver};
use serde::{Deserialize, Serialize};

/// Names the layout of [`Models`] and [`Earlier`] in the store; a change of either takes a new number.
pub const FORMAT: u32 = 1;

/// Forecasts of a job, and how far they have come.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Models {
    forecaster: JobForecaster<WorkerId>,
    seen: BTreeMap<WorkerId, Seen>,
}

/// What was learned from one worker.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Seen {
    /// The newest iteration taken.
    newest: Option<u64>,
    /// How often each driver was missing.
    missing: BTreeMap<String, u64>,
    /// Observations at the latest fit of a network, or try at one.
    fitted_at: u64,
}

impl Models {
    /// Models that have seen nothing.
    pub fn new() -> Self {
        Self { forecaster: JobForecaster::new(drivers()), seen: BTreeMap::new() }
    }

    /// What they expect.
    pub fn forecaster(&self) -> &JobForecaster<WorkerId> {
        &self.forecaster
    }

    /// Takes new reports, those of one iteration together.
    ///
    /// The first report of a worker is left out: a first iteration allocates, compiles and warms caches. So is one older
    /// than what the models have seen, which comes late, after an outage: it is history, not news.
    pub fn learn<'a>(&mut self, reports: impl IntoIterator<Item = &'a WorkerReport>) {
        for reports in by_iteration(reports) {
            let news: Vec<&WorkerReport> =
                reports.into_iter().filter(|report| self.is_news(report)).collect();
            let outcome = |report: &&WorkerReport| Some((report.worker.clone(), observation(report)?));
            let outcomes: Vec<(WorkerId, Observation)> = news.iter().filter_map(outcome).collect();
            self.forecaster.observe(&outcomes);
            for report in news {
                let readings = readings(self.forecaster.drivers(), report);
                self.forecaster.boundary(&report.worker, &readings);
            }
        }
    }

    /// Marks a report as seen, and says whether the models may learn from it.
    fn is_news(&mut self, report: &WorkerReport) -> bool {
        let first = !self.seen.contains_key(&report.worker);
        let seen = self.seen.entry(report.worker.clone()).or_default();
        if seen.newest.is_some_and(|newest| report.iteration <= newest) {
            return false;
        }
        seen.newest = Some(report.iteration);
        for name in driver::ALL.iter().filter(|name| !report.drivers.contains_key(**name)) {
            *seen.missing.entry((*name).into()).or_default() += 1;
        }
        !first
    }

    /// How often each driver was missing from a worker's reports.
    pub fn missing(&self, worker: &WorkerId) -> BTreeMap<String, u64> {
        self.seen.get(worker).map(|seen| seen.missing.clone()).unwrap_or_default()
    }

    /// Whether anything was learned of a worker yet.
    pub fn knows(&self, worker: &WorkerId) -> bool {
        self.seen.contains_key(worker)
    }

    /// Lets a worker of which nothing is known start from what was learned on a device like its own.
    pub fn warm_start(&mut self, worker: &WorkerId, earlier: Earlier) {
        self.forecaster.warm_start(worker, earlier);
    }

    /// Observations learned from, of all workers: rises with every change.
    pub fn observations(&self) -> u64 {
        self.seen.keys().map(|worker| self.forecaster.observations(worker)).sum()
    }

    /// Workers that have shown so many new observations since their network was fitted; they count as tried from now on.
    pub fn take_due(&mut self, every: u64) -> Vec<WorkerId> {
        let mut due = Vec::new();
        for (worker, seen) in &mut self.seen {
            let observations = self.forecaster.observations(worker);
            if observations >= seen.fitted_at + every {
                seen.fitted_at = observations;
                due.push(worker.clone());
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

/// What a network of each of these workers learns from, in these reports.
pub fn trainings<'a>(
    workers: &[WorkerId],
    reports: impl IntoIterator<Item = &'a WorkerReport>,
) -> Vec<(WorkerId, Training)> {
    let drivers = drivers();
    let mut trainings: BTreeMap<&WorkerId, Training> =
        workers.iter().map(|worker| (worker, Training::new(&drivers))).collect();
    for report in by_iteration(reports).into_iter().flatten() {
        if let Some(training) = trainings.get_mut(&report.worker) {
            if let Some(seen) = observation(report) {
                training.observe(&seen);
            }
            training.boundary(&readings(&drivers, report));
        }
    }
    trainings.into_iter().map(|(worker, training)| (worker.clone(), training)).collect()
}

fn by_iteration<'a>(reports: impl IntoIterator<Item = &'a WorkerReport>) -> Vec<Vec<&'a WorkerReport>> {
    let mut iterations: BTreeMap<u64, Vec<&WorkerReport>> = BTreeMap::new();
    for report in reports {
        iterations.entry(report.iteration).or_default().push(report);
    }
    iterations.into_values().collect()
}

fn observation(report: &WorkerReport) -> Option<Observation> {
    Observation::new(report.local_batch as f64, report.compute_time_s)
}

/// What forecasts take.
fn drivers() -> DriverSet {
    DriverSet::new(driver::ALL.into_iter().chain([driver::BARRIER_WAIT_S]))
}

/// What a report tells of the iteration to come, by name: its readings, and how long the worker waited.
pub fn inputs(report: &WorkerReport) -> impl Iterator<Item = (&str, f64)> {
    let waited = report.barrier_wait_s.map(|wait_s| (driver::BARRIER_WAIT_S, wait_s));
    report.drivers.iter().map(|(name, value)| (name.as_str(), *value)).chain(waited)
}

fn readings(drivers: &DriverSet, report: &WorkerReport) -> Vec<Option<f64>> {
    drivers.readings(inputs(report))
}

//! The models of a job's workers, and what they have seen.

use std::collections::BTreeMap;

use evenstep_core::forecast::JobForecaster;
use evenstep_core::series::{DriverSet, Observation};
use evenstep_protocol::{WorkerId, WorkerReport, driver};
use serde::{Deserialize, Serialize};

/// Forecasts of a job, and how far they have come.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Models {
    pub forecaster: JobForecaster<WorkerId>,
    seen: BTreeMap<WorkerId, Seen>,
}

/// What was learned from one worker.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Seen {
    /// The newest iteration taken.
    newest: Option<u64>,
    /// How often each driver was missing.
    missing: BTreeMap<String, u64>,
}

impl Models {
    /// Models that have seen nothing.
    pub fn new() -> Self {
        Self { forecaster: JobForecaster::new(DriverSet::new(driver::ALL)), seen: BTreeMap::new() }
    }

    /// Takes new reports, those of one iteration together.
    ///
    /// The first report of a worker is left out: a first iteration allocates, compiles and warms caches. So is one older
    /// than what the models have seen, which comes late, after an outage: it is history, not news.
    pub fn learn<'a>(&mut self, reports: impl IntoIterator<Item = &'a WorkerReport>) {
        let mut iterations: BTreeMap<u64, Vec<&WorkerReport>> = BTreeMap::new();
        for report in reports {
            iterations.entry(report.iteration).or_default().push(report);
        }
        for reports in iterations.into_values() {
            let news: Vec<&WorkerReport> =
                reports.into_iter().filter(|report| self.is_news(report)).collect();
            let outcomes: Vec<(WorkerId, Observation)> = news
                .iter()
                .filter_map(|report| {
                    let observation = Observation::new(report.local_batch as f64, report.compute_time_s)?;
                    Some((report.worker.clone(), observation))
                })
                .collect();
            self.forecaster.observe(&outcomes);
            for report in news {
                let readings = report.drivers.iter().map(|(name, value)| (name.as_str(), *value));
                let readings = self.forecaster.drivers().readings(readings);
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
}

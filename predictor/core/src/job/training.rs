//! Training sets for the networks of a job's workers.

use std::collections::BTreeMap;

use evenstep_protocol::{WorkerId, WorkerReport};

use super::report::{by_iteration, drivers, parts, readings};
use crate::curve::CurveLearner;
use crate::forecast::nonlinear::Training;

/// Returns the training set of each worker's network, from reports and the current curves.
pub fn trainings<'a>(
    workers: &[(WorkerId, CurveLearner)],
    reports: impl IntoIterator<Item = &'a WorkerReport>,
) -> Vec<(WorkerId, Training)> {
    let drivers = drivers();
    let mut trainings: BTreeMap<&WorkerId, (&CurveLearner, Training)> =
        workers.iter().map(|(worker, curve)| (worker, (curve, Training::new(&drivers)))).collect();
    for report in by_iteration(reports).flatten() {
        if let Some((curve, training)) = trainings.get_mut(&report.worker) {
            if let Some(seen) = parts(report).observation(curve) {
                training.observe(&seen);
            }
            training.boundary(&readings(&drivers, report));
        }
    }
    trainings.into_iter().map(|(worker, (_, training))| (worker.clone(), training)).collect()
}

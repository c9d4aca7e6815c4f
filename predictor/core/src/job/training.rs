//! Training sets for the networks of a job's workers.

use evenstep_protocol::WorkerReport;

use super::report::{drivers, parts, readings};
use crate::curve::CurveLearner;
use crate::forecast::nonlinear::Training;

/// Returns the training set of a worker's network, from its reports in order of iteration, and its current curve.
pub fn training<'a>(curve: &CurveLearner, reports: impl IntoIterator<Item = &'a WorkerReport>) -> Training {
    let drivers = drivers();
    let mut training = Training::new(&drivers, false);
    for report in reports {
        if let Some(seen) = parts(report).observation(curve) {
            training.observe(report.iteration, &seen);
        }
        training.boundary(&readings(&drivers, report));
    }
    training
}

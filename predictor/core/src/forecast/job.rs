//! The forecaster of a job: its workers, and what they know together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::arx::PooledArx;
use super::expert::ExpertKind;
use super::nonlinear::FittedExpert;
use super::value::{ExpertRecord, Forecast};
use super::worker::WorkerForecaster;
use crate::series::{DriverSet, Observation};

/// What the weights of the mix are trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Loss {
    /// Squared error in log speed, each worker for itself.
    SquaredError,
    /// The log of the step time that an allocation on these forecasts leads to, all workers together.
    #[default]
    StepTime,
}

/// Width of the soft maximum over workers in [`Loss::StepTime`], in log speed: workers within it share the blame.
const SOFT_MAXIMUM: f64 = 0.03;

/// Forecasts the workers of a job, named by `K`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Ord + Deserialize<'de>"))]
pub struct JobForecaster<K: Ord> {
    drivers: DriverSet,
    roster: Vec<ExpertKind>,
    loss: Loss,
    pool: PooledArx,
    workers: BTreeMap<K, Worker>,
}

/// A worker is known by its readings before it is known by its speed.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Worker {
    Unmeasured {
        readings: Vec<Option<f64>>,
        earlier: Option<Box<Earlier>>,
    },
    Measured(Box<WorkerForecaster>),
    /// It departed, and may be another when it is back: its last forecast stands until it is measured again.
    Aged(Box<WorkerForecaster>),
}

/// What the models of one worker have learned, to lend to another on the same kind of device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Earlier(WorkerForecaster);

impl<K: Ord + Clone> JobForecaster<K> {
    /// A forecaster that has seen nothing, with the usual experts.
    pub fn new(drivers: DriverSet) -> Self {
        let roster = ExpertKind::roster(&drivers);
        Self::with(drivers, roster, Loss::default())
    }

    /// A forecaster of these experts, mixed by this loss. Without one that needs no fit, the last value stands in.
    pub fn with(drivers: DriverSet, mut roster: Vec<ExpertKind>, loss: Loss) -> Self {
        if roster.iter().all(|kind| *kind == ExpertKind::Narx) {
            roster.push(ExpertKind::Last);
        }
        let pool = ExpertKind::pool(&drivers);
        Self { drivers, roster, loss, pool, workers: BTreeMap::new() }
    }

    /// The drivers it takes, in the order of their readings.
    pub fn drivers(&self) -> &DriverSet {
        &self.drivers
    }

    /// Takes the drivers that were read before a worker's coming iteration, in the order of [`Self::drivers`].
    pub fn boundary(&mut self, worker: &K, readings: &[Option<f64>]) {
        match self.workers.get_mut(worker) {
            Some(Worker::Measured(forecaster) | Worker::Aged(forecaster)) => forecaster.boundary(readings),
            Some(Worker::Unmeasured { readings: known, .. }) => *known = readings.to_vec(),
            None => {
                let unmeasured = Worker::Unmeasured { readings: readings.to_vec(), earlier: None };
                self.workers.insert(worker.clone(), unmeasured);
            }
        }
    }

    /// Lets an unmeasured worker start from what another has learned; one that is measured has its own record already.
    pub fn warm_start(&mut self, worker: &K, from: Earlier) {
        let unmeasured = self
            .workers
            .entry(worker.clone())
            .or_insert(Worker::Unmeasured { readings: Vec::new(), earlier: None });
        if let Worker::Unmeasured { earlier, .. } = unmeasured {
            *earlier = Some(Box::new(from));
        }
    }

    /// A worker has been away: what its models learned is lent to a new start, as from another on the same kind of device.
    /// Until it is measured again its last forecast stands.
    pub fn age(&mut self, worker: &K) {
        if let Some(Worker::Measured(forecaster)) = self.workers.get(worker) {
            let aged = Worker::Aged(forecaster.clone());
            self.workers.insert(worker.clone(), aged);
        }
    }

    /// What a worker's models have learned; `None` while it is unmeasured.
    pub fn learned(&self, worker: &K) -> Option<Earlier> {
        Some(Earlier(self.measured(worker)?.clone()))
    }

    /// Observations that a worker's models have learned from.
    pub fn observations(&self, worker: &K) -> u64 {
        self.measured(worker).map_or(0, WorkerForecaster::observations)
    }

    /// Takes what workers did in an iteration, each at most once: scores the forecasts, then lets every model learn.
    /// Microseconds for each worker.
    pub fn observe(&mut self, outcomes: &[(K, Observation)]) {
        let expected: Vec<Option<Vec<f64>>> = outcomes
            .iter()
            .map(|(worker, seen)| Some(self.measured(worker)?.expect(&self.pool, seen.batch)))
            .collect();
        let slopes = match self.loss {
            Loss::SquaredError => vec![None; outcomes.len()],
            Loss::StepTime => self.step_time_slopes(outcomes, &expected),
        };
        for (((worker, seen), expected), slope) in outcomes.iter().zip(&expected).zip(slopes) {
            match (self.workers.get_mut(worker), expected) {
                (Some(Worker::Measured(forecaster)), Some(expected)) => {
                    forecaster.observe(&mut self.pool, expected, slope, seen);
                }
                (Some(Worker::Measured(_)), None) => {}
                (known, _) => {
                    let mut new = WorkerForecaster::new(&self.roster, &self.drivers, &self.pool, seen);
                    match known {
                        Some(Worker::Aged(before)) => new.warm_start(before),
                        Some(Worker::Unmeasured { earlier: Some(earlier), .. }) => {
                            new.warm_start(&earlier.0);
                        }
                        _ => {}
                    }
                    self.workers.insert(worker.clone(), Worker::Measured(Box::new(new)));
                }
            }
        }
    }

    /// Puts a fitted network among the experts of a measured worker, or in the place of the one before.
    pub fn install(&mut self, worker: &K, network: FittedExpert) {
        if let Some(Worker::Measured(forecaster)) = self.workers.get_mut(worker) {
            forecaster.install(network);
        }
    }

    /// The slope of the log step time in each worker's log forecast. Shares follow the forecasts, so that with `d_i`
    /// the forecast's excess over what came, `log T = max_i d_i - log sum_j forecast_j`; its slope in the log forecast
    /// of worker i is its part in the (soft) maximum less its share of the batch.
    fn step_time_slopes(
        &self,
        outcomes: &[(K, Observation)],
        expected: &[Option<Vec<f64>>],
    ) -> Vec<Option<f64>> {
        let mixed: Vec<Option<f64>> = outcomes
            .iter()
            .zip(expected)
            .map(|((worker, _), expected)| Some(self.measured(worker)?.combine(expected.as_ref()?)))
            .collect();
        if mixed.iter().flatten().count() < 2 {
            return vec![None; outcomes.len()];
        }
        let excess = |(i, mixed): (usize, &Option<f64>)| {
            mixed.map(|mixed| (mixed - outcomes[i].1.speed().ln()) / SOFT_MAXIMUM)
        };
        let blame = softmax(&mixed.iter().enumerate().map(excess).collect::<Vec<_>>());
        let share = softmax(&mixed);
        blame.iter().zip(&share).map(|(blame, share)| Some((*blame)? - (*share)?)).collect()
    }

    fn measured(&self, worker: &K) -> Option<&WorkerForecaster> {
        match self.workers.get(worker)? {
            Worker::Measured(forecaster) | Worker::Aged(forecaster) => Some(forecaster),
            Worker::Unmeasured { .. } => None,
        }
    }

    /// The forecast of a worker's coming iteration of `batch` samples, as many as in its latest where none are given;
    /// `None` while it is unmeasured.
    pub fn forecast(&self, worker: &K, batch: Option<f64>) -> Option<Forecast> {
        Some(self.measured(worker)?.forecast(&self.pool, batch))
    }

    /// Errors of a worker's latest forecasts in log speed (actual minus forecast), the oldest first: with the forecast
    /// they are its distribution. Empty while it is unmeasured.
    pub fn residuals(&self, worker: &K) -> impl Iterator<Item = f64> + '_ {
        self.measured(worker).into_iter().flat_map(WorkerForecaster::residuals)
    }

    /// Each expert's part in a worker's forecast; empty while it is unmeasured.
    pub fn experts(&self, worker: &K) -> Vec<ExpertRecord> {
        self.measured(worker).map_or_else(Vec::new, |forecaster| forecaster.records(&self.pool))
    }

    /// The latest measured speed of a worker.
    pub fn last_speed(&self, worker: &K) -> Option<f64> {
        Some(self.measured(worker)?.last_speed())
    }
}

/// `exp(x_i) / sum exp(x_j)` over what is there.
fn softmax(values: &[Option<f64>]) -> Vec<Option<f64>> {
    let top = values.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = values.iter().flatten().map(|value| (value - top).exp()).sum();
    values.iter().map(|value| value.map(|value| (value - top).exp() / sum)).collect()
}

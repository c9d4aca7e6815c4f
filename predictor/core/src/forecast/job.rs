//! The forecaster of a job: its workers and their shared models.

use serde::{Deserialize, Serialize};

use super::arx::{PooledArx, PooledRow};
use super::expert::ExpertKind;
use super::nonlinear::FittedExpert;
use super::value::{ExpertRecord, Forecast};
use super::worker::{Lesson, WorkerForecaster};
use crate::allocate::Residuals;
use crate::parallel;
use crate::series::{DRIVERS_MAX, DriverSet, Observation, READING_MAX};
use crate::shared::SharedMap;

/// The loss that determines the weights of the mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Loss {
    /// Squared error in log speed, for each worker separately.
    SquaredError,
    /// Log of the step time of an allocation based on these forecasts, for all workers together.
    #[default]
    StepTime,
}

/// Maximum number of experts in a stored forecaster.
const ROSTER_MAX: usize = 64;

/// Number of workers above which the pooled model replaces their own ARX models, and maximum number of workers of an
/// iteration from which it and the weights of experts learn.
pub const WIDE: usize = 1024;

/// Width of the soft maximum over workers in [`Loss::StepTime`], in log speed. Workers within this distance
/// of the slowest share its gradient.
const SOFT_MAXIMUM: f64 = 0.03;

/// Forecasts the workers of a job, identified by `K`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "K: Ord + Serialize", deserialize = "K: Ord + Clone + Deserialize<'de>"))]
pub struct JobForecaster<K: Ord> {
    drivers: DriverSet,
    roster: Vec<ExpertKind>,
    loss: Loss,
    pool: PooledArx,
    workers: SharedMap<K, Worker>,
    /// The iteration after the latest one.
    next: u64,
    /// Number of learned iterations.
    learned: u64,
}

/// State of a worker. Its readings can be known before its speed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Worker {
    Unmeasured {
        readings: Vec<Option<f64>>,
        earlier: Option<Box<Earlier>>,
    },
    Measured(Box<WorkerForecaster>),
    /// The worker left, and may be on another device when it rejoins. Its last forecast remains until it is
    /// measured again.
    Aged(Box<WorkerForecaster>),
}

impl Default for Worker {
    fn default() -> Self {
        Self::Unmeasured { readings: Vec::new(), earlier: None }
    }
}

impl Worker {
    fn measured(&self) -> Option<&WorkerForecaster> {
        match self {
            Self::Measured(forecaster) | Self::Aged(forecaster) => Some(forecaster),
            Self::Unmeasured { .. } => None,
        }
    }
}

/// The forecast of a worker's next iteration, with [residuals](JobForecaster::residuals) and
/// [pauses](JobForecaster::pauses).
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The forecast.
    pub forecast: Forecast,
    /// Its latest errors.
    pub residuals: Residuals<'a>,
    /// Its latest pauses.
    pub pauses: Residuals<'a>,
}

/// The models of one worker, as a starting point for another worker on the same kind of device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Earlier(WorkerForecaster);

impl Earlier {
    /// Whether stored models of a device are usable for a job with these drivers.
    pub(crate) fn is_valid(&self, drivers: &DriverSet) -> bool {
        self.0.is_valid(drivers, None)
    }
}

impl<K: Ord + Clone + Send + Sync> JobForecaster<K> {
    /// Creates a forecaster without observations, with the default experts.
    pub fn new(drivers: DriverSet) -> Self {
        let roster = ExpertKind::roster(&drivers);
        Self::with(drivers, roster, Loss::default())
    }

    /// Creates a forecaster with these experts and this loss. If all of them must be fitted first, `last` is
    /// added.
    pub fn with(drivers: DriverSet, mut roster: Vec<ExpertKind>, loss: Loss) -> Self {
        if roster.iter().all(|kind| *kind == ExpertKind::Narx) {
            roster.push(ExpertKind::Last);
        }
        let pool = ExpertKind::pool(&drivers);
        Self { drivers, roster, loss, pool, workers: SharedMap::default(), next: 0, learned: 0 }
    }

    /// Whether a stored forecaster is usable: its parts belong together, and every number is in its range.
    pub(crate) fn is_valid(&self) -> bool {
        let worker = |worker: &Worker| match worker {
            Worker::Measured(known) | Worker::Aged(known) => known.is_valid(&self.drivers, Some(&self.pool)),
            Worker::Unmeasured { readings, earlier } => {
                readings.len() <= DRIVERS_MAX
                    && readings.iter().flatten().all(|reading| reading.abs() <= READING_MAX)
                    && earlier.as_ref().is_none_or(|earlier| earlier.is_valid(&self.drivers))
            }
        };
        self.drivers.len() <= DRIVERS_MAX
            && self.roster.len() <= ROSTER_MAX
            && self.roster.iter().any(|kind| *kind != ExpertKind::Narx)
            && self.roster.iter().all(|kind| kind.is_valid())
            && self.pool.is_valid(&self.drivers)
            && self.workers.values().all(worker)
    }

    /// Takes the states of all workers out, to store them in parts.
    pub(crate) fn take_workers(&mut self) -> SharedMap<K, Worker> {
        std::mem::take(&mut self.workers)
    }

    /// Puts the stored state of a worker back.
    pub(crate) fn put_worker(&mut self, worker: K, known: Worker) {
        self.workers.insert(worker, known);
    }

    /// Whether the worker has models, readings or a starting point.
    pub fn knows(&self, worker: &K) -> bool {
        self.workers.contains_key(worker)
    }

    /// Returns the drivers, in the order of their readings.
    pub fn drivers(&self) -> &DriverSet {
        &self.drivers
    }

    /// Sets the drivers read before a worker's next iteration, in the order of [`Self::drivers`].
    pub fn boundary(&mut self, worker: &K, readings: &[Option<f64>]) {
        let positions = self.positions(&[worker]);
        self.boundaries(&positions, &[readings]);
    }

    /// Returns the positions of these workers, which are in ascending order. New ones are unmeasured.
    pub(crate) fn positions(&mut self, workers: &[&K]) -> Vec<usize> {
        self.workers.positions(workers, Worker::default)
    }

    /// Sets the drivers read before the next iteration of the workers at these positions.
    pub(crate) fn boundaries<R: AsRef<[Option<f64>]> + Sync>(&mut self, positions: &[usize], readings: &[R]) {
        let pool = &self.pool;
        self.workers.update(positions, readings, |worker, readings| match worker {
            Worker::Measured(forecaster) | Worker::Aged(forecaster) => {
                forecaster.boundary(pool, readings.as_ref());
            }
            Worker::Unmeasured { readings: known, .. } => *known = readings.as_ref().to_vec(),
        });
    }

    /// Sets the starting point of an unmeasured worker. Has no effect on a measured worker, which has its own
    /// record.
    pub fn warm_start(&mut self, worker: &K, from: Earlier) {
        self.positions(&[worker]);
        if let Some(Worker::Unmeasured { earlier, .. }) = self.workers.get_mut(worker) {
            *earlier = Some(Box::new(from));
        }
    }

    /// Marks a worker that was away: its next measurement starts a new forecaster from its old models, as on
    /// another worker's device of the same kind. Until then its last forecast remains.
    pub fn age(&mut self, worker: &K) {
        if let Some(Worker::Measured(forecaster)) = self.workers.get(worker) {
            self.workers.insert(worker.clone(), Worker::Aged(forecaster.clone()));
        }
    }

    /// Returns a worker's models; `None` while it is unmeasured.
    pub fn learned(&self, worker: &K) -> Option<Earlier> {
        Some(Earlier(self.measured(worker)?.clone()))
    }

    /// Whether the pooled model forecasts all workers, and their own models learn nothing.
    pub fn is_pooled(&self) -> bool {
        self.pool.is_alone()
    }

    /// Returns the number of observations that a worker's models have learned from.
    pub fn observations(&self, worker: &K) -> u64 {
        self.measured(worker).map_or(0, WorkerForecaster::observations)
    }

    /// Adds the observations of the iteration after the latest one; see [`Self::observe_iteration`].
    pub fn observe(&mut self, outcomes: &[(K, Observation)]) {
        self.observe_iteration(self.next, outcomes);
    }

    /// Adds the observations of an iteration, at most one per worker: scores the forecasts, then updates
    /// every model. Takes microseconds per worker.
    pub fn observe_iteration(&mut self, iteration: u64, outcomes: &[(K, Observation)]) {
        let mut seen: Vec<&(K, Observation)> = outcomes.iter().collect();
        seen.sort_by(|one, other| one.0.cmp(&other.0));
        let (workers, seen): (Vec<&K>, Vec<Observation>) =
            seen.into_iter().map(|(worker, seen)| (worker, *seen)).unzip();
        let positions = self.positions(&workers);
        self.observe_at(iteration, &positions, &seen);
    }

    /// The same with the workers at these positions, in ascending order of the workers: the pooled model learns in this order.
    pub(crate) fn observe_at(&mut self, iteration: u64, positions: &[usize], seen: &[Observation]) {
        self.learned = self.learned.wrapping_add(u64::from(self.next != iteration.saturating_add(1)));
        self.next = iteration.saturating_add(1);
        // A few workers without a report do not end it.
        let wide = if self.pool.is_alone() { WIDE / 2 } else { WIDE };
        self.pool.set_alone(seen.len() > wide);
        let (drivers, roster, pool) = (&self.drivers, &self.roster, &self.pool);
        let expected = self.workers.update(positions, seen, |worker, seen| match worker {
            Worker::Measured(forecaster) | Worker::Aged(forecaster) => {
                Some((forecaster.expect(pool, seen.batch), seen.speed().ln()))
            }
            Worker::Unmeasured { .. } => None,
        });
        let slopes = match self.loss {
            Loss::SquaredError => None,
            Loss::StepTime => step_time_slopes(&expected),
        };
        let slopes = slopes.unwrap_or_else(|| vec![None; seen.len()]).into_iter();
        let turns = parallel::Turns::new(seen.len(), WIDE, self.learned);
        let lesson = |((rank, observation), slope)| Lesson {
            iteration,
            observation,
            slope,
            is_scored: turns.has(rank),
        };
        let lessons: Vec<Lesson<'_>> = seen.iter().enumerate().zip(slopes).map(lesson).collect();
        let rows = self.workers.update(positions, &lessons, |worker, lesson| {
            let earlier = match worker {
                Worker::Measured(forecaster) => return forecaster.observe(pool, *lesson),
                Worker::Aged(before) => Some(&**before),
                Worker::Unmeasured { earlier, .. } => earlier.as_ref().map(|earlier| &earlier.0),
            };
            let mut new = WorkerForecaster::new(roster, drivers, pool, lesson.observation);
            if let Some(earlier) = earlier {
                new.warm_start(earlier);
            }
            *worker = Worker::Measured(Box::new(new));
            None
        });
        // Rows are in the order of the workers, whatever the order of their outcomes.
        let rows: Vec<PooledRow> = rows.into_iter().flatten().collect();
        self.pool.update(&rows);
    }

    /// Adds a fitted network to the experts of a measured worker, or replaces the previous one.
    pub fn install(&mut self, worker: &K, network: FittedExpert) {
        if let Some(Worker::Measured(forecaster)) = self.workers.get_mut(worker) {
            forecaster.install(network);
        }
    }

    /// Returns the fitted network of a worker.
    pub fn network(&self, worker: &K) -> Option<&FittedExpert> {
        self.measured(worker)?.network()
    }

    fn measured(&self, worker: &K) -> Option<&WorkerForecaster> {
        self.workers.get(worker)?.measured()
    }

    /// Returns the forecast of a worker's next iteration of `batch` samples; by default as many as in its
    /// latest iteration. `None` while the worker is unmeasured.
    pub fn forecast(&self, worker: &K, batch: Option<f64>) -> Option<Forecast> {
        Some(self.measured(worker)?.forecast(&self.pool, batch))
    }

    /// Returns the residuals of a worker's latest forecasts in log speed (actual minus forecast) with their
    /// iterations, oldest first. Together with the forecast they describe its distribution. Empty while the
    /// worker is unmeasured.
    pub fn residuals(&self, worker: &K) -> &[(u64, f64)] {
        self.measured(worker).map_or(&[], WorkerForecaster::residuals)
    }

    /// Returns the pauses of a worker in its latest iterations: seconds that an iteration took longer than forecast while the next one
    /// did not. With their iterations, oldest first.
    pub fn pauses(&self, worker: &K) -> &[(u64, f64)] {
        self.measured(worker).map_or(&[], WorkerForecaster::pauses)
    }

    /// Returns the forecasts of these workers, which are in ascending order, as [`Self::forecast`].
    pub fn expected(&self, workers: &[&K]) -> Vec<Option<Expected<'_>>> {
        parallel::map(&self.workers.find(workers), |known| {
            let known = (*known)?.measured()?;
            let forecast = known.forecast(&self.pool, None);
            Some(Expected { forecast, residuals: known.residuals(), pauses: known.pauses() })
        })
    }

    /// Returns the forecasts of the workers at these positions, as [`Self::forecast`].
    pub(crate) fn forecasts(&self, positions: &[usize]) -> Vec<Option<Forecast>> {
        parallel::map(positions, |at| Some(self.workers.at(*at).measured()?.forecast(&self.pool, None)))
    }

    /// Returns the record of each expert of a worker; empty while the worker is unmeasured.
    pub fn experts(&self, worker: &K) -> Vec<ExpertRecord> {
        self.measured(worker).map_or_else(Vec::new, |forecaster| forecaster.records(&self.pool))
    }

    /// Returns the latest measured speed of a worker.
    pub fn last_speed(&self, worker: &K) -> Option<f64> {
        Some(self.measured(worker)?.last_speed())
    }
}

/// Returns the derivative of the log step time with respect to each worker's log forecast. Shares are
/// proportional to the forecasts. With `d_i` the log of forecast over actual speed,
/// `log T = max_i d_i - log sum_j forecast_j`. The derivative for worker i is its part of the (soft) maximum minus its share
/// of the batch. `None` with fewer than two forecasts. Arguments are log forecasts and log speeds.
fn step_time_slopes(expected: &[Option<(f64, f64)>]) -> Option<Vec<Option<f64>>> {
    if expected.iter().flatten().count() < 2 {
        return None;
    }
    let mixed: Vec<Option<f64>> = expected.iter().map(|expected| Some((*expected)?.0)).collect();
    let excess =
        |expected: &Option<(f64, f64)>| expected.map(|(mixed, actual)| (mixed - actual) / SOFT_MAXIMUM);
    let blame = softmax(&expected.iter().map(excess).collect::<Vec<_>>());
    let share = softmax(&mixed);
    Some(blame.iter().zip(&share).map(|(blame, share)| Some((*blame)? - (*share)?)).collect())
}

/// Returns `exp(x_i) / sum exp(x_j)` over the values that are present.
fn softmax(values: &[Option<f64>]) -> Vec<Option<f64>> {
    let top = values.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = values.iter().flatten().map(|value| (value - top).exp()).sum();
    values.iter().map(|value| value.map(|value| (value - top).exp() / sum)).collect()
}

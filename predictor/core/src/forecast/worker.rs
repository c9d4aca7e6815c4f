//! The forecaster of one worker: experts, their mix, and the interval.

use serde::{Deserialize, Serialize};

use super::arx::PooledArx;
use super::expert::{Expert, ExpertKind};
use super::inputs::History;
use super::interval::AdaptiveInterval;
use super::mix::Mix;
use super::nonlinear::FittedExpert;
use super::value::{COVERAGE, ExpertRecord, Forecast};
use crate::series::{DriverSet, Observation};

/// Share of an earlier worker's evidence that a new worker starts with. It is enough to skip the first
/// hundred iterations, and small enough that differences are learned quickly.
const WARM_START_TRUST: f64 = 0.1;

/// State of one measured worker. It is created with the first observation, so a forecast always exists.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WorkerForecaster {
    history: History,
    experts: Vec<(ExpertKind, Expert)>,
    mix: Mix,
    interval: AdaptiveInterval,
    observations: u64,
}

impl WorkerForecaster {
    pub fn new(roster: &[ExpertKind], drivers: &DriverSet, pool: &PooledArx, first: &Observation) -> Self {
        let log_speed = first.speed().ln();
        let expert = |kind: &ExpertKind| Some((*kind, Expert::new(*kind, drivers, pool, log_speed)?));
        let experts: Vec<(ExpertKind, Expert)> = roster.iter().filter_map(expert).collect();
        Self {
            history: History::new(log_speed, first.batch),
            mix: Mix::new(&experts.iter().map(|(kind, _)| kind.prior()).collect::<Vec<_>>()),
            experts,
            interval: AdaptiveInterval::new(COVERAGE),
            observations: 1,
        }
    }

    /// Adds a fitted network to the experts, or replaces the previous one.
    pub fn install(&mut self, network: FittedExpert) {
        let network = Expert::Narx(Box::new(network));
        match self.experts.iter_mut().find(|(kind, _)| *kind == ExpertKind::Narx) {
            Some((_, expert)) => *expert = network,
            None => {
                self.experts.push((ExpertKind::Narx, network));
                self.mix.add_expert();
            }
        }
    }

    pub fn boundary(&mut self, drivers: &[Option<f64>]) {
        self.history.boundary(drivers);
    }

    /// Returns each expert's forecast of the next iteration, in log speed.
    pub fn expect(&self, pool: &PooledArx, batch: f64) -> Vec<f64> {
        self.experts.iter().map(|(_, expert)| expert.predict(&self.history, pool, batch)).collect()
    }

    pub fn combine(&self, expected: &[f64]) -> f64 {
        self.mix.combine(expected)
    }

    /// Scores the forecasts by squared error or by a loss with this slope, then updates every model.
    pub fn observe(
        &mut self,
        pool: &mut PooledArx,
        expected: &[f64],
        slope: Option<f64>,
        iteration: u64,
        observation: &Observation,
    ) {
        let log_speed = observation.speed().ln();
        self.interval.score(iteration, log_speed - self.mix.combine(expected));
        match slope {
            Some(slope) => self.mix.score_by(expected, log_speed, slope),
            None => self.mix.score(expected, log_speed),
        }
        for (_, expert) in &mut self.experts {
            expert.update(&self.history, pool, observation.batch, log_speed);
        }
        self.history.observe(log_speed, observation.batch);
        self.observations += 1;
    }

    pub fn observations(&self) -> u64 {
        self.observations
    }

    pub fn forecast(&self, pool: &PooledArx, batch: Option<f64>) -> Forecast {
        let log_speed = self.combine(&self.expect(pool, batch.unwrap_or(self.history.batch())));
        let half_width = self.interval.half_width();
        Forecast {
            speed: log_speed.exp(),
            lower: (log_speed - half_width).exp(),
            upper: (log_speed + half_width).exp(),
        }
    }

    /// Returns the residuals of the latest forecasts in log speed (actual minus forecast) with their iterations, oldest
    /// first.
    pub fn residuals(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        self.interval.residuals()
    }

    pub fn records(&self, pool: &PooledArx) -> Vec<ExpertRecord> {
        let expected = self.expect(pool, self.history.batch());
        let record = |(i, (kind, _)): (usize, &(ExpertKind, Expert))| ExpertRecord {
            name: kind.to_string(),
            speed: expected[i].exp(),
            weight: self.mix.weights()[i],
            log_rmse: self.mix.log_rmse(i),
        };
        self.experts.iter().enumerate().map(record).collect()
    }

    pub fn last_speed(&self) -> f64 {
        self.history.last().exp()
    }

    /// Starts from an earlier worker's models; the level remains the worker's own.
    pub fn warm_start(&mut self, earlier: &Self) {
        // A network is fitted to one worker, so it is not transferred; only the experts before it are.
        self.mix.warm_start(&earlier.mix);
        for (kind, expert) in &mut self.experts {
            if let Some((_, earlier)) = earlier.experts.iter().find(|(other, _)| other == kind) {
                expert.warm_start(earlier, WARM_START_TRUST);
            }
        }
    }
}

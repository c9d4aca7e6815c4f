//! Models of a backtest by name.

use std::fmt;
use std::str::FromStr;

use evenstep_core::forecast::narx::Narx;
use evenstep_core::forecast::nonlinear::{REFIT_OBSERVATIONS, Training};
use evenstep_core::forecast::{EXPERT_NAMES, ExpertKind, JobForecaster, Loss};
use evenstep_core::series::{DriverSet, Observation};

use super::rolling::{JobModel, Prediction};

/// Names of the mixes. The other models are single experts ([`EXPERT_NAMES`]).
pub const MIX_NAMES: &str = "mix, mix_step (trained on the step time)";

/// Default models of a backtest.
pub const DEFAULT_MODELS: [&str; 7] = ["last", "ema_0.3", "ema_0.6", "arx", "arx_pooled", "mix", "mix_step"];

/// Name of a model. It displays as the user wrote it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelName {
    written: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Expert(ExpertKind),
    Mix(Loss),
}

/// No model has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no model {name:?}; the models are {EXPERT_NAMES}, {MIX_NAMES}")]
pub struct UnknownModel {
    name: String,
}

impl FromStr for ModelName {
    type Err = UnknownModel;

    fn from_str(written: &str) -> Result<Self, UnknownModel> {
        let kind = match written {
            "ma" => Some(Kind::Expert(ExpertKind::MovingAverage(5))),
            "ema" => Some(Kind::Expert(ExpertKind::Ema(0.3))),
            "hold" => Some(Kind::Expert(ExpertKind::Hold(0.3))),
            "mix" => Some(Kind::Mix(Loss::SquaredError)),
            "mix_step" => Some(Kind::Mix(Loss::StepTime)),
            // The network alone forecasts nothing before its first fit; mix contains it.
            _ => written.parse().ok().filter(|kind| *kind != ExpertKind::Narx).map(Kind::Expert),
        };
        let kind = kind.ok_or_else(|| UnknownModel { name: written.into() })?;
        Ok(Self { written: written.into(), kind })
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

impl ModelName {
    /// The last value, the reference of every comparison.
    pub fn last() -> Self {
        Self { written: "last".into(), kind: Kind::Expert(ExpertKind::Last) }
    }

    /// Creates a model without history, for a job with these drivers and this number of workers.
    pub fn build(&self, drivers: &[String], workers: usize) -> Box<dyn JobModel> {
        let drivers = DriverSet::new(drivers.iter().cloned());
        let (roster, loss, networks) = match self.kind {
            Kind::Expert(kind) => (vec![kind], Loss::SquaredError, 0),
            Kind::Mix(loss) => (ExpertKind::roster(&drivers), loss, workers),
        };
        Box::new(Streaming::new(JobForecaster::with(drivers, roster, loss), networks))
    }
}

/// The forecaster of the service, with one expert or with all.
struct Streaming {
    forecaster: JobForecaster<usize>,
    /// Outcomes of the workers in this iteration, from which the forecaster learns jointly.
    outcomes: Vec<(usize, Observation)>,
    /// Training data of the networks by worker, as in the service's background fits; empty without networks.
    training: Vec<Training>,
    rows: Vec<u64>,
    /// Number of iterations learned.
    learned: u64,
}

impl Streaming {
    fn new(forecaster: JobForecaster<usize>, networks: usize) -> Self {
        let training = vec![Training::new(forecaster.drivers(), true); networks];
        Self { forecaster, outcomes: Vec::new(), training, rows: vec![0; networks], learned: 0 }
    }

    fn refit(&mut self, worker: usize, seen: &Observation) {
        let Some(training) = self.training.get_mut(worker) else { return };
        training.observe(self.learned, seen);
        self.rows[worker] += 1;
        if self.rows[worker].is_multiple_of(REFIT_OBSERVATIONS)
            && let Ok(network) = training.fit(&Narx::refit())
        {
            training.start_from(network.clone());
            self.forecaster.install(&worker, network);
        }
    }
}

impl JobModel for Streaming {
    fn boundary(&mut self, worker: usize, drivers: &[Option<f64>]) {
        self.forecaster.boundary(&worker, drivers);
        if let Some(training) = self.training.get_mut(worker) {
            training.boundary(drivers);
        }
    }

    fn forecast(&mut self, worker: usize, batch: u64) -> Option<Prediction> {
        let forecast = self.forecaster.forecast(&worker, Some(batch as f64))?;
        Some(Prediction { speed: forecast.speed, interval: Some((forecast.lower, forecast.upper)) })
    }

    fn observe(&mut self, worker: usize, batch: u64, compute_time_s: f64) {
        if let Some(seen) = Observation::new(batch as f64, compute_time_s) {
            self.outcomes.push((worker, seen));
        }
    }

    fn learn(&mut self) {
        self.forecaster.observe_iteration(self.learned, &self.outcomes);
        // Training follows scoring, so no network is scored on rows that it was fitted to.
        for (worker, seen) in std::mem::take(&mut self.outcomes) {
            self.refit(worker, &seen);
        }
        self.learned += 1;
    }
}

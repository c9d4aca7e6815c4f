//! Models of a backtest by name.

use std::fmt;
use std::str::FromStr;

use evenstep_core::forecast::fit::FitError;
use evenstep_core::forecast::narx::Narx;
use evenstep_core::forecast::nonlinear::Training;
use evenstep_core::forecast::{EXPERT_NAMES, ExpertKind, JobForecaster, Loss};
use evenstep_core::series::{DriverSet, Observation};

use super::recipes::RecipeName;
use super::refit::{RefittedModel, Setup};
use super::rolling::{JobModel, Prediction};

/// Names of the mixes. The other models are single experts ([`EXPERT_NAMES`]) and batch models
/// ([`RecipeName::ALL`]).
pub const MIX_NAMES: &str = "mix, mix_step (trained on the step time)";

/// Default models of a rolling backtest.
pub const DEFAULT_MODELS: [&str; 7] = ["last", "ema_0.3", "ema_0.6", "arx", "arx_pooled", "mix", "mix_step"];

/// Default number of rows between two fits of a network in the mix, as in the service.
const REFIT_ROWS: usize = 200;

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
    Batch(RecipeName),
}

/// No model has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no model {name:?}; the models are {EXPERT_NAMES}, {MIX_NAMES}, {}", RecipeName::ALL.map(RecipeName::as_str).join(", "))]
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
            _ => RecipeName::find(written)
                .map(Kind::Batch)
                .or_else(|| Some(Kind::Expert(written.parse().ok()?))),
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

    /// Whether this is the last value.
    pub fn is_last(&self) -> bool {
        self.kind == Kind::Expert(ExpertKind::Last)
    }

    /// Returns the batch model of this name for system identification, where `arx` is fitted by least
    /// squares.
    pub fn recipe(&self) -> Option<RecipeName> {
        match self.kind {
            Kind::Batch(recipe) => Some(recipe),
            Kind::Expert(ExpertKind::Arx) => Some(RecipeName::Arx),
            _ => None,
        }
    }

    /// Creates a model without history.
    ///
    /// # Errors
    /// [`FitError::Setting`] if a setting of a batch model is out of range.
    pub fn build(&self, setup: &Setup<'_>) -> Result<Box<dyn JobModel>, FitError> {
        let drivers = DriverSet::new(setup.drivers.iter().cloned());
        Ok(match self.kind {
            Kind::Expert(kind) => {
                Box::new(Streaming::new(JobForecaster::with(drivers, vec![kind], Loss::SquaredError), None))
            }
            Kind::Mix(loss) => {
                let roster = ExpertKind::roster(&drivers);
                Box::new(Streaming::new(JobForecaster::with(drivers, roster, loss), Some(setup)))
            }
            Kind::Batch(recipe) => Box::new(RefittedModel::new(recipe, setup)?),
        })
    }
}

/// The forecaster of the service, with one expert or with all.
struct Streaming {
    forecaster: JobForecaster<usize>,
    /// Outcomes of the workers in this iteration, from which the forecaster learns jointly.
    outcomes: Vec<(usize, Observation)>,
    /// Training data of the networks by worker, as in the service's background fits; empty without networks.
    training: Vec<Training>,
    refit_rows: usize,
    rows: Vec<usize>,
}

impl Streaming {
    fn new(forecaster: JobForecaster<usize>, networks: Option<&Setup<'_>>) -> Self {
        let workers = networks.map_or(0, |setup| setup.warmup_rows.len());
        let training = vec![Training::new(forecaster.drivers()); workers];
        let refit_rows = networks.and_then(|setup| setup.refits.every).unwrap_or(REFIT_ROWS);
        Self { forecaster, outcomes: Vec::new(), training, refit_rows, rows: vec![0; workers] }
    }

    fn refit(&mut self, worker: usize, seen: &Observation) {
        let Some(training) = self.training.get_mut(worker) else { return };
        training.observe(seen);
        self.rows[worker] += 1;
        if self.rows[worker].is_multiple_of(self.refit_rows)
            && let Ok(network) = training.fit(&Narx::refit())
        {
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
        self.forecaster.observe(&self.outcomes);
        // Training follows scoring, so no network is scored on rows that it was fitted to.
        for (worker, seen) in std::mem::take(&mut self.outcomes) {
            self.refit(worker, &seen);
        }
    }
}

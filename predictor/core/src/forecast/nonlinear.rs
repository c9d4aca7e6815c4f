//! NARX as an expert: a network over the same inputs as ARX, fitted to a stretch of history beside the running service.
//!
//! [`Training`] walks through the history as the forecaster did and keeps what a network learns from; a fit makes a
//! [`FittedExpert`] of it, which [`super::JobForecaster::install`] puts among the experts of the worker. There it is
//! gated by its own record like all others.

use std::collections::VecDeque;

use linfa::DatasetBase;
use linfa::traits::Fit;
use ndarray::{Array1, Array2};
use serde::{Deserialize, Serialize};

use super::fit::{FitError, Regression};
use super::inputs::{History, InputGroups, Layout};
use super::missing_readings::Scaler;
use super::narx::{FittedNarx, Narx};
use crate::series::{DriverSet, Observation};

/// Rows of history that a network is fitted to at most: the latest.
pub const TRAINING_ROWS_MAX: usize = 2048;

/// New observations after which a worker's network is fitted again.
pub const REFIT_OBSERVATIONS: u64 = 200;

/// What a network of one worker learns from.
#[derive(Debug, Clone)]
pub struct Training {
    layout: Layout,
    scaler: Scaler,
    history: Option<History>,
    readings: Vec<Option<f64>>,
    rows: VecDeque<(Vec<Option<f64>>, f64)>,
}

impl Training {
    /// Nothing yet, of a job with these drivers.
    pub fn new(drivers: &DriverSet) -> Self {
        let layout = Layout::new(InputGroups::Selected, true, drivers);
        Self {
            scaler: Scaler::new(&layout),
            layout,
            history: None,
            readings: Vec::new(),
            rows: VecDeque::new(),
        }
    }

    /// Takes the drivers read before the coming iteration.
    pub fn boundary(&mut self, readings: &[Option<f64>]) {
        match &mut self.history {
            Some(history) => history.boundary(readings),
            None => self.readings = readings.to_vec(),
        }
    }

    /// Takes an iteration.
    pub fn observe(&mut self, seen: &Observation) {
        let log_speed = seen.speed().ln();
        let Some(history) = &mut self.history else {
            self.history = Some(History::new(log_speed, seen.batch));
            return;
        };
        let base = history.base();
        let raw = self.layout.raw(history, base, seen.batch);
        self.scaler.learn(&raw);
        if self.rows.len() == TRAINING_ROWS_MAX {
            self.rows.pop_front();
        }
        self.rows.push_back((raw, log_speed - base));
        history.observe(log_speed, seen.batch);
    }

    /// Fits a network: milliseconds to a second, never on the way of a request.
    ///
    /// # Errors
    /// [`FitError`] where there is too little history.
    pub fn fit(&self, recipe: &Narx) -> Result<FittedExpert, FitError> {
        let filled: Vec<Vec<f64>> =
            self.rows.iter().map(|(raw, _)| self.scaler.filled(raw).collect()).collect();
        let columns = changing(&filled, self.layout.width());
        let values: Vec<f64> = filled.iter().flat_map(|row| columns.iter().map(|at| row[*at])).collect();
        let records = Array2::from_shape_vec((filled.len(), columns.len()), values)
            .map_err(|error| FitError::NoSolution(error.to_string()))?;
        let targets: Array1<f64> = self.rows.iter().map(|(_, target)| *target).collect();
        let network = recipe.fit(&DatasetBase::new(records, targets))?;
        Ok(FittedExpert { layout: self.layout.clone(), scaler: self.scaler.clone(), columns, network })
    }
}

/// Inputs that change: what never does costs weights and says nothing.
fn changing(rows: &[Vec<f64>], width: usize) -> Vec<usize> {
    (0..width).filter(|at| rows.windows(2).any(|pair| pair[0][*at] != pair[1][*at])).collect()
}

/// A fitted network, ready to forecast from a worker's history.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FittedExpert {
    layout: Layout,
    /// As it was at the fit: means stand for missing readings.
    scaler: Scaler,
    /// The inputs that it takes.
    columns: Vec<usize>,
    network: FittedNarx,
}

impl FittedExpert {
    /// The log speed of the coming iteration of `batch` samples, kept within the recent range.
    pub(super) fn predict(&self, history: &History, batch: f64) -> f64 {
        let base = history.base();
        let raw = self.layout.raw(history, base, batch);
        let filled: Vec<f64> = self.scaler.filled(&raw).collect();
        let inputs: Vec<f64> = self.columns.iter().map(|at| filled[*at]).collect();
        history.guard(base + self.network.predict_row(&inputs), base)
    }
}

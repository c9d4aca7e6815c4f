//! NARX as an expert: a network on the inputs of ARX, fitted in the background to a range of history.
//!
//! [`Training`] replays the history like the forecaster and collects training rows. A fit returns a
//! [`FittedExpert`], which [`super::JobForecaster::install`] adds to the experts of the worker. Its weight in
//! the mix begins with its error on held-out rows, and then depends on its record, as for all experts.

use std::collections::VecDeque;

use linfa::DatasetBase;
use ndarray::{Array1, Array2};
use serde::{Deserialize, Serialize};

use super::fit::{FitError, Regression};
use super::inputs::{History, InputGroups, Layout};
use super::missing_readings::Scaler;
use super::narx::{FittedNarx, Narx, Validation};
use crate::series::{DriverSet, Observation};

/// Maximum number of rows that a network is fitted to: the most recent ones.
pub const TRAINING_ROWS_MAX: usize = 2048;

/// Number of new observations after which a worker's network is fitted again.
pub const REFIT_OBSERVATIONS: u64 = 200;

/// Maximum number of held-out rows that count as evidence: these rows also selected the network.
const EVIDENCE_ROWS_MAX: usize = 32;

/// Training data for the network of one worker.
#[derive(Debug, Clone)]
pub struct Training {
    layout: Layout,
    scaler: Scaler,
    history: Option<History>,
    readings: Vec<Option<f64>>,
    rows: VecDeque<(Vec<Option<f64>>, f64)>,
    in_use: Option<FittedExpert>,
}

impl Training {
    /// Creates an empty training set for a job with these drivers.
    pub fn new(drivers: &DriverSet) -> Self {
        let layout = Layout::new(InputGroups::Selected, true, drivers);
        Self {
            scaler: Scaler::new(&layout),
            layout,
            history: None,
            readings: Vec::new(),
            rows: VecDeque::new(),
            in_use: None,
        }
    }

    /// Sets the network in use, whose weights the next fit starts from.
    pub fn start_from(&mut self, network: FittedExpert) {
        self.in_use = Some(network);
    }

    /// Sets the drivers read before the next iteration.
    pub fn boundary(&mut self, readings: &[Option<f64>]) {
        match &mut self.history {
            Some(history) => history.boundary(readings),
            None => self.readings = readings.to_vec(),
        }
    }

    /// Adds an iteration.
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

    /// Fits a network. Takes milliseconds to a second, so it must not run inside a request.
    ///
    /// # Errors
    /// [`FitError`] if the history is too short.
    pub fn fit(&self, recipe: &Narx) -> Result<FittedExpert, FitError> {
        let filled: Vec<Vec<f64>> =
            self.rows.iter().map(|(raw, _)| self.scaler.filled(raw).collect()).collect();
        // A level can change to one that no row has, where the output of a network means nothing.
        let absolute = self.layout.absolute();
        let columns: Vec<usize> =
            changing(&filled, self.layout.width()).filter(|at| !absolute.contains(at)).collect();
        let values: Vec<f64> = filled.iter().flat_map(|row| columns.iter().map(|at| row[*at])).collect();
        let records = Array2::from_shape_vec((filled.len(), columns.len()), values)
            .map_err(|error| FitError::NoSolution(error.to_string()))?;
        let targets: Array1<f64> = self.rows.iter().map(|(_, target)| *target).collect();
        let same = |known: &&FittedExpert| known.layout == self.layout && known.columns == columns;
        let earlier = self.in_use.as_ref().filter(same).map(|known| &known.network);
        let (network, validation) = recipe.fit_after(&DatasetBase::new(records, targets), earlier)?;
        Ok(FittedExpert {
            layout: self.layout.clone(),
            scaler: self.scaler.clone(),
            columns,
            network,
            validation: Some(validation),
        })
    }
}

/// Returns the inputs that vary. Constant inputs cost weights and carry no information.
fn changing(rows: &[Vec<f64>], width: usize) -> impl Iterator<Item = usize> {
    (0..width).filter(|at| rows.windows(2).any(|pair| pair[0][*at] != pair[1][*at]))
}

/// A fitted network that forecasts from a worker's history.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FittedExpert {
    layout: Layout,
    /// State at the time of the fit: its means replace missing readings.
    scaler: Scaler,
    /// Positions of the inputs that the network uses.
    columns: Vec<usize>,
    network: FittedNarx,
    /// `None` after storage.
    #[serde(skip)]
    validation: Option<Validation>,
}

impl FittedExpert {
    /// Whether a stored network for these drivers is usable.
    pub(super) fn is_valid(&self, drivers: &DriverSet) -> bool {
        self.layout.is_valid(drivers)
            && self.scaler.is_valid(&self.layout)
            && self.columns.iter().all(|at| *at < self.layout.width())
            && self.network.is_valid(self.columns.len())
    }

    /// Returns the log of the odds by which the fit's held-out rows favour this network over the mix, whose latest residuals
    /// are these: the likelihood ratio of normal errors.
    pub(super) fn evidence(&self, residuals: &[(u64, f64)]) -> f64 {
        let Some(Validation { mean_square, rows }) = self.validation else { return 0.0 };
        let rows = rows.min(residuals.len());
        let squares = |(_, residual): &(u64, f64)| residual * residual;
        let mixed = residuals.iter().rev().take(rows).map(squares).sum::<f64>() / rows as f64;
        let evidence = 0.5 * rows.min(EVIDENCE_ROWS_MAX) as f64 * (mixed / mean_square).ln();
        if evidence.is_finite() { evidence } else { 0.0 }
    }

    /// Returns the log speed of the next iteration of `batch` samples, clamped to the recent range.
    pub(super) fn predict(&self, history: &History, batch: f64) -> f64 {
        let base = history.base();
        let raw = self.layout.raw(history, base, batch);
        let filled: Vec<f64> = self.scaler.filled(&raw).collect();
        let inputs: Vec<f64> = self.columns.iter().map(|at| filled[*at]).collect();
        history.clamp_to_recent_range(base + self.network.predict_row(&inputs), base)
    }
}

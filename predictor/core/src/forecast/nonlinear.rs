//! NARX as an expert: a network on the inputs of ARX, fitted in the background to a range of history.
//!
//! [`Training`] replays the history like the forecaster and collects training rows. Neither learns from jumps. A fit returns a
//! [`FittedExpert`], which [`super::JobForecaster::install`] adds to the experts of the worker. Its weight in
//! the mix begins with its error on held-out rows, and then depends on its record, as for all experts.

use std::collections::VecDeque;

use linfa::DatasetBase;
use ndarray::{Array1, Array2};
use serde::{Deserialize, Serialize};

use super::change::{ChangePoint, Move};
use super::fit::{FitError, Regression};
use super::inputs::{History, InputGroups, Layout};
use super::missing_readings::Scaler;
use super::narx::{FittedNarx, Narx};
use crate::series::{DriverSet, Observation};

/// Maximum number of rows that a network is fitted to: the most recent ones.
pub const TRAINING_ROWS_MAX: usize = 2048;

/// Number of new observations after which a worker's network is fitted again.
pub const REFIT_OBSERVATIONS: u64 = 200;

/// Maximum number of held-out rows that count as evidence: these rows also selected the network.
const EVIDENCE_ROWS_MAX: u32 = 32;

/// Training data for the network of one worker.
#[derive(Debug, Clone)]
pub struct Training {
    layout: Layout,
    sees_batches: bool,
    scaler: Scaler,
    past: Option<Past>,
    readings: Vec<Option<f64>>,
    rows: VecDeque<Row>,
    in_use: Option<FittedExpert>,
}

/// State after the first observation.
#[derive(Debug, Clone)]
struct Past {
    history: History,
    change: ChangePoint,
    /// The latest number of samples.
    batch: f64,
    /// The latest row if it was a jump: the next iteration tells whether it lasts.
    jump: Option<Row>,
}

#[derive(Debug, Clone)]
struct Row {
    iteration: u64,
    raw: Vec<Option<f64>>,
    target: f64,
}

impl Training {
    /// Creates an empty training set for a job with these drivers, without batches unless the network `sees_batches`. If shares
    /// follow forecasts, a network that saw batches would learn to read the forecasts of the models before it.
    pub fn new(drivers: &DriverSet, sees_batches: bool) -> Self {
        let layout = Layout::new(InputGroups::Selected, true, drivers);
        Self {
            scaler: Scaler::new(&layout),
            layout,
            sees_batches,
            past: None,
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
        match &mut self.past {
            Some(past) => past.history.boundary(readings),
            None => self.readings = readings.to_vec(),
        }
    }

    /// Adds an iteration. A jump from the base is no history, as for the other models, and a row only if the next iteration
    /// confirms it: drivers may have announced it.
    pub fn observe(&mut self, iteration: u64, seen: &Observation) {
        let log_speed = seen.speed().ln();
        let batch = if self.sees_batches { seen.batch } else { 1.0 };
        let Some(Past { history, change, batch: before, jump }) = &mut self.past else {
            let (history, change) = (History::new(log_speed, batch), ChangePoint::new(log_speed));
            self.past = Some(Past { history, change, batch: seen.batch, jump: None });
            return;
        };
        // Up to two rows are added.
        while self.rows.len() > TRAINING_ROWS_MAX - 2 {
            self.rows.pop_front();
        }
        let base = history.base();
        let batch_change = (seen.batch / std::mem::replace(before, seen.batch)).ln();
        let is_off = change.is_jump(log_speed - base, batch_change);
        let moved = change.update(log_speed, batch_change);
        if let Some(row) = jump.take().filter(|_| moved != Move::Returns) {
            self.scaler.learn(&row.raw);
            self.rows.push_back(row);
        }
        let row = Row { iteration, raw: self.layout.raw(history, base, batch), target: log_speed - base };
        if moved == Move::Leaves && is_off {
            *jump = Some(row);
            return;
        }
        self.scaler.learn(&row.raw);
        self.rows.push_back(row);
        history.observe(log_speed, batch);
    }

    /// Fits a network. Takes milliseconds to a second, so it must not run inside a request.
    ///
    /// # Errors
    /// [`FitError`] if the history is too short.
    pub fn fit(&self, recipe: &Narx) -> Result<FittedExpert, FitError> {
        let filled: Vec<Vec<f64>> =
            self.rows.iter().map(|row| self.scaler.filled(&row.raw).collect()).collect();
        // A level can change to one that no row has, where the output of a network means nothing.
        let absolute = self.layout.absolute();
        let columns: Vec<usize> =
            changing(&filled, self.layout.width()).filter(|at| !absolute.contains(at)).collect();
        let values: Vec<f64> = filled.iter().flat_map(|row| columns.iter().map(|at| row[*at])).collect();
        let records = Array2::from_shape_vec((filled.len(), columns.len()), values)
            .map_err(|error| FitError::NoSolution(error.to_string()))?;
        let targets: Array1<f64> = self.rows.iter().map(|row| row.target).collect();
        let same = |known: &&FittedExpert| known.layout == self.layout && known.columns == columns;
        let earlier = self.in_use.as_ref().filter(same).map(|known| &known.network);
        let (network, validation) = recipe.fit_after(&DatasetBase::new(records, targets), earlier)?;
        Ok(FittedExpert {
            layout: self.layout.clone(),
            scaler: self.scaler.clone(),
            columns,
            network,
            squares: validation
                .squares
                .iter()
                .map(|(at, square)| (self.rows[*at].iteration, *square))
                .collect(),
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
    /// Squared errors of the held-out iterations, in order. Empty after storage.
    #[serde(skip)]
    squares: Vec<(u64, f64)>,
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
    /// are these: the likelihood ratio of normal errors in the iterations that both have.
    pub(super) fn evidence(&self, residuals: &[(u64, f64)]) -> f64 {
        let (mut rows, mut own, mut mixed) = (0, 0.0, 0.0);
        for (iteration, square) in &self.squares {
            if let Ok(at) = residuals.binary_search_by_key(iteration, |(iteration, _)| *iteration) {
                (rows, own, mixed) = (rows + 1, own + square, mixed + residuals[at].1.powi(2));
            }
        }
        let evidence = 0.5 * f64::from(rows.min(EVIDENCE_ROWS_MAX)) * (mixed / own).ln();
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

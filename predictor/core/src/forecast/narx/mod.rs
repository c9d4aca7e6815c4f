//! NARX: a small network on lagged outputs and inputs, trained by Levenberg-Marquardt.

mod cholesky;
mod equations;
mod marquardt;
mod network;
mod penalty;
mod settings;

pub use penalty::Decay;
pub use settings::Settings;

use linfa::traits::Fit;
use ndarray::{Array1, Array2};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::fit::{Dataset, FitError, Regression, check};
use super::scaling::{Linear, Scaling};
use equations::Table;
use network::Network;

/// A NARX network: `y = c z + sum_j v_j tanh(w_j z)` over the regressors `z` (and a 1), all in standard
/// deviations. The fit minimises `sum e^2 + penalty sum w^2`; see [`Settings`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Narx {
    settings: Settings,
}

impl Narx {
    /// Creates a network with custom settings.
    ///
    /// # Errors
    /// [`FitError::Setting`] with the first setting that is out of range.
    pub fn new(settings: Settings) -> Result<Self, FitError> {
        settings.check()?;
        Ok(Self { settings })
    }

    /// Settings for refits by a running service: [`Settings::REFIT`].
    pub fn refit() -> Self {
        Self { settings: Settings::REFIT }
    }
}

/// A fitted NARX model: a committee of networks. It uses the middle half of their outputs, so single outliers
/// do not matter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FittedNarx {
    scaling: Scaling,
    networks: Vec<Network>,
}

impl FittedNarx {
    /// Whether a stored model with this number of regressors is usable. A forecast that is not finite is not used.
    pub(super) fn is_valid(&self, regressors: usize) -> bool {
        self.scaling.columns.len() == regressors
            && !self.networks.is_empty()
            && self.networks.iter().all(|network| network.is_valid(regressors + 1))
    }
}

/// The error of a fitted model on rows that it was not fitted to, or on the fitted rows if none were held out.
#[derive(Debug, Clone, PartialEq)]
pub struct Validation {
    /// Squared errors by row of the data, in order.
    pub squares: Vec<(usize, f64)>,
}

/// Share of the variance of the held-out rows: with a larger error, more networks are trained from random weights.
const POOR: f64 = 0.5;
/// Number of these networks.
const RESTARTS_POOR: usize = 2;

impl Fit<Array2<f64>, Array1<f64>, FitError> for Narx {
    type Object = FittedNarx;

    fn fit(&self, dataset: &Dataset) -> Result<FittedNarx, FitError> {
        Ok(self.fit_after(dataset, None)?.0)
    }
}

impl Narx {
    /// Fits a model. The first network starts from the best one of an earlier model of the same regressors, and all others
    /// from random weights, other ones than in the earlier fit.
    ///
    /// # Errors
    /// As of `fit`.
    pub fn fit_after(
        &self,
        dataset: &Dataset,
        earlier: Option<&FittedNarx>,
    ) -> Result<(FittedNarx, Validation), FitError> {
        let settings = &self.settings;
        let (regressors, targets) = (dataset.records(), dataset.targets());
        let inputs = regressors.ncols() + 1;
        let hidden =
            (1..=settings.hidden).rev().find(|hidden| Network::size(inputs, *hidden) <= settings.weights);
        let hidden = hidden.unwrap_or(1);
        let size = Network::size(inputs, hidden);
        check(dataset, size)?;
        let scaling = Scaling::standard(regressors, targets);
        let rows = targets.len();
        let thinned = rows.min(settings.rows);
        let chosen: Vec<usize> = (0..thinned).map(|k| k * rows / thinned).collect();
        let (fit, held_out) = chosen.split_at(thinned - (thinned as f64 * settings.holdout) as usize);
        let judged = if held_out.is_empty() { fit } else { held_out };
        let table = |rows: &[usize]| {
            let row = |at: &usize| scaling.row(regressors.row(*at)).chain([1.0]);
            let values: Vec<f64> = rows.iter().flat_map(row).collect();
            Table {
                rows: Array2::from_shape_vec((rows.len(), inputs), values).unwrap_or_default(),
                targets: rows.iter().map(|at| scaling.target.scaled(targets[*at])).collect(),
            }
        };
        let (fit, held_out) = (table(fit), table(held_out));
        let judge = if held_out.targets.is_empty() { &fit } else { &held_out };
        let mut known = earlier.and_then(|earlier| earlier.best_in(&scaling, inputs, hidden));
        // The newest target tells one refit from the next.
        let newest = known.as_ref().and(targets.last()).map_or(0, |target| target.to_bits());
        let mut rng = ChaCha8Rng::seed_from_u64(settings.seed ^ newest);
        let mut train = |restart: usize| {
            let penalty = settings.decay.of(restart % settings.restarts);
            let start = known.take().unwrap_or_else(|| Network::random(inputs, hidden, &mut rng));
            let network = marquardt::train(start, &fit, &held_out, penalty, settings.iterations);
            (judge.squares(&network), network)
        };
        let mut networks: Vec<(f64, Network)> = (0..settings.restarts).map(&mut train).collect();
        let poor = POOR * held_out.targets.iter().map(|target| target * target).sum::<f64>();
        if networks.iter().all(|(squares, _)| *squares > poor) && !held_out.targets.is_empty() {
            networks.extend((settings.restarts..settings.restarts + RESTARTS_POOR).map(&mut train));
        }
        // The sort is stable: among equals, the earlier restart comes first.
        networks.sort_by(|a, b| a.0.total_cmp(&b.0));
        networks.truncate(settings.committee);
        let networks = networks.into_iter().map(|(_, network)| network).collect();
        let fitted = FittedNarx { scaling, networks };
        let square = |at: &usize| {
            let forecast = fitted.predict_row(&regressors.row(*at).to_vec());
            (*at, (forecast - targets[*at]).powi(2))
        };
        let squares = judged.iter().map(square).collect();
        Ok((fitted, Validation { squares }))
    }
}

impl FittedNarx {
    /// Returns the best network in units of another scaling; `None` if it has another shape.
    fn best_in(&self, scaling: &Scaling, inputs: usize, hidden: usize) -> Option<Network> {
        let best = self.networks.first()?;
        let columns = self.scaling.columns.iter().zip(&scaling.columns);
        let columns: Vec<Linear> = columns.map(|(own, new)| own.units_from(new)).collect();
        let has_shape = columns.len() + 1 == inputs && best.inputs() == inputs && best.hidden() == hidden;
        has_shape.then(|| best.mapped(&columns, scaling.target.units_from(&self.scaling.target)))?
    }
}

impl Regression for FittedNarx {
    fn predict_row(&self, regressors: &[f64]) -> f64 {
        let z: Vec<f64> = self.scaling.row(regressors).chain([1.0]).collect();
        let mut outputs: Vec<f64> = self.networks.iter().map(|network| network.output(&z)).collect();
        self.scaling.target.unscaled(middle_mean(&mut outputs))
    }
}

/// Returns the mean of the middle half of the values.
fn middle_mean(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = &values[values.len() / 4..values.len() - values.len() / 4];
    middle.iter().sum::<f64>() / middle.len() as f64
}

crate::predict_rows!(FittedNarx);

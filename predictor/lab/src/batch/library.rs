//! Linear models through linfa: the ecosystem's own least squares, ridge and elastic net beside ours.

use evenstep_core::forecast::fit::{Dataset, FitError, Regression, check, setting};
use evenstep_core::forecast::scaling::Scaling;
use evenstep_core::predict_rows;
use linfa::DatasetBase;
use linfa::traits::Fit;
use linfa_elasticnet::ElasticNetParams;
use linfa_linear::LinearRegression;
use ndarray::{Array1, Array2};
use serde::{Deserialize, Serialize};

/// Sweeps over the coefficients after which the elastic net stops, converged or not.
const SWEEPS_MAX: u32 = 1_000;

/// The elastic net has converged when no coefficient moves by more, in standard deviations.
const SWEEP_TOLERANCE: f64 = 1e-8;

/// Ordinary least squares by linfa-linear: `sum (y - x b - c)^2`.
///
/// Needs columns that are linearly independent: near-singular tables are an error or give wild coefficients. For those
/// take [`Ridge`] or [`Arx`](super::Arx).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ols;

/// Ridge regression by linfa-linear: `sum (y - x b - c)^2 + ridge |b|^2` with every regressor in its own standard
/// deviations.
///
/// | setting | default | meaning | range |
/// |---|---|---|---|
/// | `ridge` | 10 | weight of the squared coefficients | above 0 |
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ridge {
    ridge: f64,
}

/// The elastic net by linfa-elasticnet:
/// `sum (y - x b - c)^2 / 2n + penalty (l1_ratio |b|_1 + (1 - l1_ratio) |b|^2 / 2)`, everything in standard deviations.
///
/// | setting | default | meaning | range |
/// |---|---|---|---|
/// | `penalty` | .001 | weight of both penalties | 0 and up |
/// | `l1_ratio` | .5 | share of the absolute values in them | 0 to 1 |
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ElasticNet {
    penalty: f64,
    l1_ratio: f64,
}

impl Default for Ridge {
    fn default() -> Self {
        Self { ridge: 10.0 }
    }
}

impl Default for ElasticNet {
    fn default() -> Self {
        Self { penalty: 1e-3, l1_ratio: 0.5 }
    }
}

impl Ridge {
    /// With this much ridge.
    ///
    /// # Errors
    /// [`FitError::Setting`] unless `ridge` is finite and above 0.
    pub fn new(ridge: f64) -> Result<Self, FitError> {
        setting("ridge", ridge, "above 0, and finite", ridge > 0.0 && ridge.is_finite())?;
        Ok(Self { ridge })
    }
}

impl ElasticNet {
    /// With this penalty, this share of it on the absolute values.
    ///
    /// # Errors
    /// [`FitError::Setting`] unless `penalty` is finite and at least 0, and `l1_ratio` from 0 to 1.
    pub fn new(penalty: f64, l1_ratio: f64) -> Result<Self, FitError> {
        setting("penalty", penalty, "0 or more, and finite", penalty >= 0.0 && penalty.is_finite())?;
        setting("l1_ratio", l1_ratio, "from 0 to 1", (0.0..=1.0).contains(&l1_ratio))?;
        Ok(Self { penalty, l1_ratio })
    }
}

/// A linear model that linfa fitted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FittedLinear {
    scaling: Scaling,
    coefficients: Vec<f64>,
    intercept: f64,
}

impl FittedLinear {
    /// Checks the dataset and fits what `solve` makes of it in standard deviations: coefficients and intercept.
    fn by(
        dataset: &Dataset,
        solve: impl FnOnce(Array2<f64>, Array1<f64>) -> Result<(Array1<f64>, f64), String>,
    ) -> Result<Self, FitError> {
        check(dataset, dataset.records().ncols() + 1)?;
        let scaling = Scaling::standard(dataset.records(), dataset.targets());
        let mut regressors = dataset.records().clone();
        for (mut column, scale) in regressors.columns_mut().into_iter().zip(&scaling.columns) {
            column.mapv_inplace(|value| scale.scaled(value));
        }
        let targets = dataset.targets().mapv(|value| scaling.target.scaled(value));
        let (coefficients, intercept) = solve(regressors, targets).map_err(FitError::NoSolution)?;
        if let Some(wild) = coefficients.iter().chain([&intercept]).find(|value| !value.is_finite()) {
            return Err(FitError::NoSolution(format!(
                "a coefficient of {wild}; the columns are not independent"
            )));
        }
        Ok(Self { scaling, coefficients: coefficients.to_vec(), intercept })
    }
}

impl Fit<Array2<f64>, Array1<f64>, FitError> for Ols {
    type Object = FittedLinear;

    fn fit(&self, dataset: &Dataset) -> Result<FittedLinear, FitError> {
        FittedLinear::by(dataset, |regressors, targets| {
            let model = LinearRegression::default()
                .fit(&DatasetBase::new(regressors, targets))
                .map_err(|error| error.to_string())?;
            Ok((model.params().clone(), model.intercept()))
        })
    }
}

impl Fit<Array2<f64>, Array1<f64>, FitError> for Ridge {
    type Object = FittedLinear;

    fn fit(&self, dataset: &Dataset) -> Result<FittedLinear, FitError> {
        FittedLinear::by(dataset, |mut regressors, mut targets| {
            // linfa-linear knows no ridge. As many rows more as there are columns, sqrt(ridge) I against targets of 0,
            // have the same minimum; and regressors and targets have mean 0, so that no intercept is needed.
            let width = regressors.ncols();
            let rows = Array2::from_diag_elem(width, self.ridge.sqrt());
            let shape = |error: ndarray::ShapeError| error.to_string();
            regressors.append(ndarray::Axis(0), rows.view()).map_err(shape)?;
            targets.append(ndarray::Axis(0), Array1::zeros(width).view()).map_err(shape)?;
            let model = LinearRegression::default()
                .with_intercept(false)
                .fit(&DatasetBase::new(regressors, targets))
                .map_err(|error| error.to_string())?;
            Ok((model.params().clone(), 0.0))
        })
    }
}

impl Fit<Array2<f64>, Array1<f64>, FitError> for ElasticNet {
    type Object = FittedLinear;

    fn fit(&self, dataset: &Dataset) -> Result<FittedLinear, FitError> {
        FittedLinear::by(dataset, |regressors, targets| {
            let model = ElasticNetParams::new()
                .penalty(self.penalty)
                .l1_ratio(self.l1_ratio)
                .tolerance(SWEEP_TOLERANCE)
                .max_iterations(SWEEPS_MAX)
                .fit(&DatasetBase::new(regressors, targets))
                .map_err(|error| error.to_string())?;
            Ok((model.hyperplane().clone(), model.intercept()))
        })
    }
}

impl Regression for FittedLinear {
    fn predict_row(&self, regressors: &[f64]) -> f64 {
        let units: f64 =
            self.scaling.row(regressors).zip(&self.coefficients).map(|(value, b)| value * b).sum();
        self.scaling.target.unscaled(units + self.intercept)
    }
}

predict_rows!(FittedLinear);

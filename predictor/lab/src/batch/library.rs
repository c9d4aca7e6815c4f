//! Linear models of linfa: least squares, ridge regression and elastic net, for comparison with the models of
//! this crate.

use evenstep_core::forecast::fit::{Dataset, FitError, Regression, check, setting};
use evenstep_core::forecast::scaling::Scaling;
use evenstep_core::predict_rows;
use linfa::DatasetBase;
use linfa::traits::Fit;
use linfa_elasticnet::ElasticNetParams;
use linfa_linear::LinearRegression;
use ndarray::{Array1, Array2};
use serde::{Deserialize, Serialize};

/// Maximum number of sweeps over the coefficients in the elastic net.
const SWEEPS_MAX: u32 = 1_000;

/// Convergence tolerance of the elastic net: largest change of a coefficient per sweep, in standard
/// deviations.
const SWEEP_TOLERANCE: f64 = 1e-8;

/// Ordinary least squares by linfa-linear: `sum (y - x b - c)^2`.
///
/// The columns must be linearly independent. Nearly singular tables give an error or very large coefficients;
/// use [`Ridge`] or [`Arx`](super::Arx) for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ols;

/// Ridge regression by linfa-linear: `sum (y - x b - c)^2 + ridge |b|^2` with every regressor in units of its
/// standard deviation.
///
/// | setting | default | meaning | range |
/// |---|---|---|---|
/// | `ridge` | 10 | weight of the squared coefficients | above 0 |
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ridge {
    ridge: f64,
}

/// Elastic net by linfa-elasticnet:
/// `sum (y - x b - c)^2 / 2n + penalty (l1_ratio |b|_1 + (1 - l1_ratio) |b|^2 / 2)`, with all variables in
/// units of their standard deviations.
///
/// | setting | default | meaning | range |
/// |---|---|---|---|
/// | `penalty` | 0.001 | weight of both penalties | at least 0 |
/// | `l1_ratio` | 0.5 | share of the L1 penalty | 0 to 1 |
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
    /// Creates a recipe with this ridge.
    ///
    /// # Errors
    /// [`FitError::Setting`] unless `ridge` is finite and above 0.
    pub fn new(ridge: f64) -> Result<Self, FitError> {
        setting("ridge", ridge, "finite and above 0", ridge > 0.0 && ridge.is_finite())?;
        Ok(Self { ridge })
    }
}

impl ElasticNet {
    /// Creates a recipe with this penalty and this share of the L1 penalty.
    ///
    /// # Errors
    /// [`FitError::Setting`] unless `penalty` is finite and at least 0, and `l1_ratio` is from 0 to 1.
    pub fn new(penalty: f64, l1_ratio: f64) -> Result<Self, FitError> {
        setting("penalty", penalty, "finite and at least 0", penalty >= 0.0 && penalty.is_finite())?;
        setting("l1_ratio", l1_ratio, "from 0 to 1", (0.0..=1.0).contains(&l1_ratio))?;
        Ok(Self { penalty, l1_ratio })
    }
}

/// A linear model fitted by linfa.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FittedLinear {
    scaling: Scaling,
    coefficients: Vec<f64>,
    intercept: f64,
}

impl FittedLinear {
    /// Checks the dataset, and fits a model with `solve`. `solve` gets regressors and targets in standard
    /// deviations and returns coefficients and intercept.
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
            // linfa-linear does not implement ridge regression. Additional rows sqrt(ridge) I with targets of
            // 0, one per column, give the same minimum. Regressors and targets have mean 0, so no intercept
            // is needed.
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

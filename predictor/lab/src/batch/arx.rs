//! ARX: a linear model of lagged outputs and inputs, fitted by (ridge) least squares.

use evenstep_core::forecast::fit::{Dataset, FitError, Regression, check, setting};
use evenstep_core::forecast::scaling::Scaling;
use evenstep_core::predict_rows;
use linfa::traits::Fit;
use ndarray::{Array1, Array2};
use serde::{Deserialize, Serialize};

use super::triangle::Triangle;

/// Recipe of an ARX model.
///
/// Minimizes `sum (y - x b - c)^2 + ridge |b|^2` with every regressor in units of its standard deviation. The
/// intercept `c` is not penalized. Constant and collinear columns get the coefficient 0.
///
/// | setting | default | meaning | range |
/// |---|---|---|---|
/// | `ridge` | 1e-6 | weight of the squared coefficients | 0 and up |
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arx {
    ridge: f64,
}

impl Default for Arx {
    /// Nearly ordinary least squares, with a ridge just large enough for columns that are almost collinear.
    fn default() -> Self {
        Self { ridge: 1e-6 }
    }
}

impl Arx {
    /// Creates a recipe with this ridge.
    ///
    /// # Errors
    /// [`FitError::Setting`] unless `ridge` is finite and at least 0.
    pub fn new(ridge: f64) -> Result<Self, FitError> {
        setting("ridge", ridge, "finite and at least 0", ridge >= 0.0 && ridge.is_finite())?;
        Ok(Self { ridge })
    }
}

/// A fitted ARX model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FittedArx {
    scaling: Scaling,
    /// `b`: coefficients in standard deviations of the target per standard deviation of the regressor.
    coefficients: Vec<f64>,
}

impl Fit<Array2<f64>, Array1<f64>, FitError> for Arx {
    type Object = FittedArx;

    fn fit(&self, dataset: &Dataset) -> Result<FittedArx, FitError> {
        let (regressors, targets) = (dataset.records(), dataset.targets());
        let width = regressors.ncols();
        check(dataset, width + 1)?;
        let scaling = Scaling::standard(regressors, targets);
        let mut triangle = Triangle::new(width, self.ridge);
        let mut row = Vec::with_capacity(width + 1);
        for (values, target) in regressors.rows().into_iter().zip(targets) {
            row.clear();
            row.extend(scaling.row(values));
            row.push(scaling.target.scaled(*target));
            triangle.add_row(&mut row);
        }
        Ok(FittedArx { coefficients: triangle.solve(), scaling })
    }
}

impl Regression for FittedArx {
    fn predict_row(&self, regressors: &[f64]) -> f64 {
        let units = self.scaling.row(regressors).zip(&self.coefficients).map(|(value, b)| value * b).sum();
        self.scaling.target.unscaled(units)
    }
}

predict_rows!(FittedArx);

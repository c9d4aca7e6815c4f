//! Common parts of fitted models: their datasets, checks, and row-wise prediction.
//!
//! Models implement linfa's `Fit` and `Predict`, so that they compose with its datasets and metrics.

use linfa::DatasetBase;
use ndarray::{Array1, Array2};

/// A fitted model of one value from its regressors.
pub trait Regression: Send + Sync + std::fmt::Debug {
    /// Returns the prediction for one row of regressors. The row has the same length as the rows of the fit.
    fn predict_row(&self, regressors: &[f64]) -> f64;
}

/// Regressors and targets, in linfa's format.
pub type Dataset = DatasetBase<Array2<f64>, Array1<f64>>;

/// The reason why a model could not be fitted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FitError {
    /// The history is too short.
    #[error("{rows} rows of history; this model needs at least {needed}")]
    TooFewRows {
        /// Number of rows.
        rows: usize,
        /// Minimum number of rows.
        needed: usize,
    },
    /// The numbers of regressor rows and targets differ.
    #[error("{rows} rows of regressors, but {targets} targets; every row needs one")]
    Shape {
        /// Number of rows of regressors.
        rows: usize,
        /// Number of targets.
        targets: usize,
    },
    /// A value is not finite.
    #[error("row {row} of the history contains {value}; every value must be finite")]
    NotFinite {
        /// Row of the dataset.
        row: usize,
        /// The value.
        value: f64,
    },
    /// A hyperparameter is out of range.
    #[error("{name} {value} is out of range; it must be {rule}")]
    Setting {
        /// Name of the hyperparameter.
        name: &'static str,
        /// Its value.
        value: f64,
        /// Its valid range.
        rule: &'static str,
    },
    /// The library behind the model found no solution.
    #[error("no solution: {0}")]
    NoSolution(String),
}

impl From<linfa::Error> for FitError {
    fn from(error: linfa::Error) -> Self {
        Self::NoSolution(error.to_string())
    }
}

/// Implements linfa's `PredictInplace` for types that implement
/// [`Regression`](crate::forecast::fit::Regression). The calling crate needs `linfa` and `ndarray`.
#[macro_export]
macro_rules! predict_rows {
    ($($model:ty),*) => {$(
        impl linfa::traits::PredictInplace<ndarray::Array2<f64>, ndarray::Array1<f64>> for $model {
            fn predict_inplace(&self, regressors: &ndarray::Array2<f64>, targets: &mut ndarray::Array1<f64>) {
                *targets = regressors
                    .rows()
                    .into_iter()
                    .map(|row| $crate::forecast::fit::Regression::predict_row(self, &row.to_vec()))
                    .collect();
            }

            fn default_target(&self, regressors: &ndarray::Array2<f64>) -> ndarray::Array1<f64> {
                ndarray::Array1::zeros(regressors.nrows())
            }
        }
    )*};
}

/// Checks the requirements of every fit: finite values, one target per row, and at least `needed` rows.
///
/// # Errors
/// [`FitError`] describes the first requirement that is not met.
pub fn check(dataset: &Dataset, needed: usize) -> Result<(), FitError> {
    let (regressors, targets) = (dataset.records(), dataset.targets());
    let rows = regressors.nrows();
    if targets.len() != rows {
        return Err(FitError::Shape { rows, targets: targets.len() });
    }
    if rows < needed {
        return Err(FitError::TooFewRows { rows, needed });
    }
    for (row, (values, target)) in regressors.rows().into_iter().zip(targets).enumerate() {
        if let Some(value) = values.iter().chain([target]).find(|value| !value.is_finite()) {
            return Err(FitError::NotFinite { row, value: *value });
        }
    }
    Ok(())
}

/// Checks one hyperparameter; `kept` is whether it is in its valid range.
///
/// # Errors
/// [`FitError::Setting`] with its name, value and rule.
pub fn setting(name: &'static str, value: f64, rule: &'static str, kept: bool) -> Result<(), FitError> {
    if kept { Ok(()) } else { Err(FitError::Setting { name, value, rule }) }
}

//! What fitted models have in common: the table that they are fitted to, its checks, and prediction row by row.
//!
//! Models implement linfa's `Fit` and `Predict`, so that they compose with its datasets and metrics.

use linfa::DatasetBase;
use ndarray::{Array1, Array2};

/// A fitted model of one value from its regressors.
pub trait Regression: Send + Sync + std::fmt::Debug {
    /// The value that follows from one row of regressors, as many as it was fitted on.
    fn predict_row(&self, regressors: &[f64]) -> f64;
}

/// Regressors and targets, as linfa keeps them.
pub type Dataset = DatasetBase<Array2<f64>, Array1<f64>>;

/// Why a model could not be fitted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FitError {
    /// Too little history.
    #[error("{rows} rows of history; this model needs at least {needed}")]
    TooFewRows {
        /// Rows there were.
        rows: usize,
        /// Rows that it takes.
        needed: usize,
    },
    /// Regressors and targets that do not go together.
    #[error("{rows} rows of regressors, but {targets} targets; every row needs one")]
    Shape {
        /// Rows of regressors.
        rows: usize,
        /// Targets.
        targets: usize,
    },
    /// A value that is no number.
    #[error("row {row} of the history holds {value}; every value must be finite")]
    NotFinite {
        /// Row of the regressors.
        row: usize,
        /// What it holds.
        value: f64,
    },
    /// A hyperparameter outside its range.
    #[error("{name}: {value} breaks the rule: {rule}")]
    Setting {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: f64,
        /// Its rule.
        rule: &'static str,
    },
    /// The library behind the model gave up.
    #[error("no solution: {0}")]
    NoSolution(String),
}

impl From<linfa::Error> for FitError {
    fn from(error: linfa::Error) -> Self {
        Self::NoSolution(error.to_string())
    }
}

/// Implements linfa's `PredictInplace` for types that implement [`Regression`](crate::forecast::fit::Regression). The calling crate needs
/// `linfa` and `ndarray`.
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

/// Checks what every fit requires: finite values, a target for each row, and at least `needed` rows.
///
/// # Errors
/// [`FitError`] names the first rule that is broken.
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

/// Checks one hyperparameter; `kept` says whether it keeps its rule.
///
/// # Errors
/// [`FitError::Setting`] with its name, value and rule.
pub fn setting(name: &'static str, value: f64, rule: &'static str, kept: bool) -> Result<(), FitError> {
    if kept { Ok(()) } else { Err(FitError::Setting { name, value, rule }) }
}

//! Batch models: fitted once on a stretch of history, then asked for one value at a time.
//!
//! A recipe (an unfitted model) turns regressors and targets into a [`Regression`]; only that can predict. The recipes
//! of our own also implement linfa's `Fit` and `Predict`, so that they compose with its datasets and metrics.

mod compose;
mod frols;
mod library;
mod linear;
mod monomials;
mod narx;
mod polynomial;
mod regressors;
mod scaling;
mod triangle;

pub use frols::Criterion;
pub use library::{ElasticNet, FittedLinear, Ols, Ridge};
pub use linear::{Arx, FittedArx};
pub use narx::{Decay, FittedNarx, Narx, Settings};
pub use polynomial::{CANDIDATES_MAX, DEGREE_MAX, FittedPolynomial, Polynomial, Terms};
pub use regressors::{Lags, System};

/// A fitted model of one value from its regressors.
pub trait Regression: Send + Sync + std::fmt::Debug {
    /// The value that follows from one row of regressors, as many as it was fitted on.
    fn predict_row(&self, regressors: &[f64]) -> f64;
}

/// A recipe for a [`Regression`].
pub trait Recipe: Send + Sync {
    /// Fits `targets[k]` to row `k` of `regressors`.
    ///
    /// # Errors
    /// [`FitError`] where there is nothing to fit, or no solution.
    fn fit_rows(
        &self,
        regressors: &ndarray::Array2<f64>,
        targets: &ndarray::Array1<f64>,
    ) -> Result<Box<dyn Regression>, FitError>;
}

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

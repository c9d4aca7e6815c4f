//! Recipes: unfitted models behind a trait object.

use evenstep_core::forecast::fit::{FitError, Regression};
use linfa::DatasetBase;
use linfa::traits::Fit;
use ndarray::{Array1, Array2};

/// A recipe that fits a [`Regression`].
pub trait Recipe: Send + Sync {
    /// Fits `targets[k]` to row `k` of `regressors`.
    ///
    /// # Errors
    /// [`FitError`] if the table is too small, or the fit has no solution.
    fn fit_rows(
        &self,
        regressors: &Array2<f64>,
        targets: &Array1<f64>,
    ) -> Result<Box<dyn Regression>, FitError>;
}

/// Every linfa model whose fit predicts row by row is a recipe.
impl<R> Recipe for R
where
    R: Fit<Array2<f64>, Array1<f64>, FitError, Object: Regression + 'static> + Send + Sync,
{
    fn fit_rows(
        &self,
        regressors: &Array2<f64>,
        targets: &Array1<f64>,
    ) -> Result<Box<dyn Regression>, FitError> {
        Ok(Box::new(self.fit(&DatasetBase::new(regressors.clone(), targets.clone()))?))
    }
}

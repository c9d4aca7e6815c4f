//! Where our models and linfa's traits meet: recipes are `Fit`, fitted models are `Predict`.

use linfa::DatasetBase;
use linfa::traits::Fit;
use ndarray::{Array1, Array2};

use super::{FitError, Recipe, Regression};

/// Regressors and targets the way linfa keeps them.
pub(super) type Dataset = DatasetBase<Array2<f64>, Array1<f64>>;

/// Whatever fits as linfa's models do, to something that predicts row by row, is a recipe.
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

impl From<linfa::Error> for FitError {
    fn from(error: linfa::Error) -> Self {
        Self::NoSolution(error.to_string())
    }
}

/// linfa's `Predict` for a [`Regression`]. (A blanket implementation of a foreign trait is not ours to write.)
macro_rules! predict_rows {
    ($($model:ty),*) => {$(
        impl linfa::traits::PredictInplace<ndarray::Array2<f64>, ndarray::Array1<f64>> for $model {
            fn predict_inplace(&self, regressors: &ndarray::Array2<f64>, targets: &mut ndarray::Array1<f64>) {
                *targets = regressors
                    .rows()
                    .into_iter()
                    .map(|row| $crate::forecast::batch::Regression::predict_row(self, &row.to_vec()))
                    .collect();
            }

            fn default_target(&self, regressors: &ndarray::Array2<f64>) -> ndarray::Array1<f64> {
                ndarray::Array1::zeros(regressors.nrows())
            }
        }
    )*};
}
pub(super) use predict_rows;

/// Checks what every fit takes for granted: finite values, a target for each row, and at least `needed` rows.
pub(super) fn check(dataset: &Dataset, needed: usize) -> Result<(), FitError> {
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

/// The error of a hyperparameter unless it keeps its rule.
pub(super) fn setting(
    name: &'static str,
    value: f64,
    rule: &'static str,
    kept: bool,
) -> Result<(), FitError> {
    if kept { Ok(()) } else { Err(FitError::Setting { name, value, rule }) }
}

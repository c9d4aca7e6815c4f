//! System identification: a model is fitted to one range of a system's rows and scored on another.

use std::ops::Range;

use evenstep_core::forecast::fit::FitError;

use super::clock::Clock;
use super::error::BacktestError;
use super::metrics::Accuracy;
use crate::batch::{Lags, Recipe, System};

/// Denominator of the held-out share of the training range (the last fifth), which decides whether current
/// inputs help.
const HELD_OUT: usize = 5;

/// Settings of an identification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identification {
    /// Lags of the regressors.
    pub lags: Lags,
    /// Rows to fit. Their lags lie within the range.
    pub train: Range<usize>,
    /// Rows to predict. The lags of the first ones may lie before the range.
    pub test: Range<usize>,
    /// Number of rows at the start of the test range that are predicted but not counted.
    pub skip: usize,
    /// Whether predictions replace measured values as lags of the target, from the start of the test range
    /// on.
    pub free_run: bool,
}

/// Result of an identification.
#[derive(Debug, Clone, PartialEq)]
pub struct Identified {
    /// Prediction of each row of the test range.
    pub predictions: Vec<f64>,
    /// Errors in the unit of the system, over the rows that count.
    pub accuracy: Option<Accuracy>,
    /// Duration of the fit in seconds.
    pub fit_s: f64,
    /// Mean time of a prediction in microseconds.
    pub predict_us: f64,
}

impl Identification {
    /// Checks the ranges against the number of rows of a series.
    ///
    /// # Errors
    /// [`BacktestError::PastEnd`] if a range ends after the last row. [`BacktestError::TooShort`] if a range
    /// is too short.
    pub fn check(&self, id: &str, rows: usize) -> Result<(), BacktestError> {
        let reach = self.lags.reach();
        for (which, range) in [("train", &self.train), ("test", &self.test)] {
            let (id, start, end) = (id.to_owned(), range.start, range.end);
            if end > rows || start >= rows {
                return Err(BacktestError::PastEnd { id, which, start, end, rows });
            }
            let rule = if which == "train" && range.len() <= reach {
                format!("the lags need more than {reach} rows")
            } else if which == "test" && start < reach {
                format!("{reach} rows must precede it, for the lags of its first row")
            } else if which == "test" && range.len() < self.skip + 2 {
                format!("at least 2 rows must remain after the {} skipped rows", self.skip)
            } else {
                continue;
            };
            return Err(BacktestError::TooShort { id, which, start, end, rule });
        }
        Ok(())
    }

    /// Fits the model, predicts the test range and computes the errors. The ranges must pass
    /// [`Identification::check`].
    ///
    /// # Errors
    /// [`FitError`] if the model cannot be fitted.
    pub fn run(
        &self,
        recipe: &dyn Recipe,
        system: System<'_>,
        clock: Clock<'_>,
    ) -> Result<Identified, FitError> {
        let began = clock();
        let targets = self.train.start + self.lags.reach()..self.train.end;
        let (table, targets) = self.lags.table(system, targets);
        let model = recipe.fit_rows(&table, &targets)?;
        let fitted = clock();
        let predict = if self.free_run { Lags::free_run } else { Lags::one_step };
        let predictions = predict(&self.lags, model.as_ref(), system, self.test.clone());
        let predicted = clock();
        Ok(Identified {
            accuracy: self.judge(system.y, &predictions),
            fit_s: fitted - began,
            predict_us: 1e6 * (predicted - fitted) / predictions.len() as f64,
            predictions,
        })
    }

    /// Returns whether inputs of the row itself improve its prediction. The model is fitted with and without
    /// them to the first part of the training range, and both fits predict the rest. If neither is better,
    /// current inputs are not used.
    pub fn current_helps(&self, recipe: &dyn Recipe, system: System<'_>) -> bool {
        let held_out = self.train.end - self.train.len() / HELD_OUT;
        let error = |current: bool| {
            let trial = Self {
                lags: Lags { current, ..self.lags },
                train: self.train.start..held_out,
                test: held_out..self.train.end,
                skip: 0,
                free_run: self.free_run,
            };
            trial.check("", system.y.len()).ok()?;
            trial.run(recipe, system, &|| 0.0).ok()?.accuracy.map(|accuracy| accuracy.rmse)
        };
        let inputs = system.u.first().map_or(0, Vec::len);
        inputs > 0 && error(true).is_some_and(|with| error(false).is_none_or(|without| with < without))
    }

    /// Predictions of the last value: the latest one before the horizon, or before the test range in free
    /// run.
    pub fn last_value(&self, y: &[f64]) -> Vec<f64> {
        let seen = |row: usize| if self.free_run { self.test.start - 1 } else { row - self.lags.horizon };
        self.test.clone().map(|row| y[seen(row)]).collect()
    }

    /// Computes errors over the rows that count; `None` if a prediction is not finite.
    pub fn judge(&self, y: &[f64], predictions: &[f64]) -> Option<Accuracy> {
        let pairs = y[self.test.clone()].iter().copied().zip(predictions.iter().copied());
        Accuracy::of(&pairs.skip(self.skip).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Arx;

    fn task(train: Range<usize>, test: Range<usize>, free_run: bool) -> Identification {
        let lags = Lags { y: 1, u: 1, current: false, stride: 1, horizon: 1 };
        Identification { lags, train, test, skip: 0, free_run }
    }

    /// y(k) = 0.8 y(k-1) + u(k-1).
    fn system(rows: u32) -> (Vec<f64>, Vec<Vec<f64>>) {
        let u: Vec<Vec<f64>> = (0..rows).map(|k| vec![f64::from(k * 7919 % 13) - 6.0]).collect();
        let mut y = vec![0.0];
        for k in 1..u.len() {
            y.push(0.8 * y[k - 1] + u[k - 1][0]);
        }
        (y, u)
    }

    #[test]
    fn free_run_prediction_of_a_linear_system_is_exact() {
        let (y, u) = system(300);
        let recipe = Arx::new(0.0).unwrap();
        let ours = task(0..100, 150..300, true);
        let done = ours.run(&recipe, System { y: &y, u: &u }, &|| 0.0).unwrap();
        assert_eq!(done.predictions.len(), 150);
        assert!(done.accuracy.unwrap().rmse < 1e-9, "{done:?}");
    }

    /// A disturbance of the measured output in the test range. One step ahead the next prediction follows it;
    /// in free run none does.
    #[test]
    fn free_run_sees_nothing_of_the_test() {
        let (quiet, u) = system(300);
        let mut y = quiet.clone();
        y[200] += 1.0;
        let recipe = Arx::new(0.0).unwrap();
        let next = |free_run| {
            let ours = task(0..100, 150..300, free_run);
            ours.run(&recipe, System { y: &y, u: &u }, &|| 0.0).unwrap().predictions[51]
        };
        assert!((next(true) - quiet[201]).abs() < 1e-9);
        assert!((next(false) - quiet[201] - 0.8).abs() < 1e-9);
    }

    /// The test range does not affect the fit. Rows before the training range do not affect it either.
    #[test]
    fn only_the_train_range_is_fitted() {
        let (mut y, u) = system(100);
        for row in (0..20).chain(60..70) {
            y[row] = 1e6;
        }
        let recipe = Arx::new(0.0).unwrap();
        let ours = task(20..60, 80..100, false);
        let done = ours.run(&recipe, System { y: &y, u: &u }, &|| 0.0).unwrap();
        assert!(done.accuracy.unwrap().rmse < 1e-9, "{done:?}");
    }

    /// Detects both an input that acts immediately and one that acts a row later.
    #[test]
    fn finds_when_inputs_act() {
        let (y, later) = system(300);
        let at_once: Vec<Vec<f64>> =
            std::iter::once(vec![0.0]).chain(later.iter().cloned()).take(300).collect();
        let recipe = Arx::default();
        for free_run in [false, true] {
            let ours = task(0..100, 150..300, free_run);
            let helps = |u: &[Vec<f64>]| ours.current_helps(&recipe, System { y: &y, u });
            assert!(helps(&at_once) && !helps(&later) && !helps(&vec![vec![]; 300]));
        }
    }

    #[test]
    fn skipped_rows_do_not_count() {
        let y = [1.0, 1.0, 9.0, 2.0, 4.0];
        let ours = Identification { skip: 1, ..task(0..2, 2..5, false) };
        assert_eq!(ours.last_value(&y), [1.0, 9.0, 2.0]);
        assert_eq!(ours.judge(&y, &[0.0, 2.0, 3.0]).unwrap().mae, 0.5);
        assert_eq!(Identification { free_run: true, ..ours }.last_value(&y), [1.0, 1.0, 1.0]);
    }

    #[test]
    fn ranges_are_checked() {
        let said = |train, test, skip| {
            Identification { skip, ..task(train, test, false) }.check("s", 100).unwrap_err().to_string()
        };
        assert_eq!(said(0..101, 50..60, 0), "s: the train range 0..101 ends after the last of 100 rows");
        assert_eq!(said(0..10, 100..100, 0), "s: the test range 100..100 ends after the last of 100 rows");
        assert!(said(5..6, 50..60, 0).contains("need more than 1 rows"));
        assert!(said(5..9, 0..60, 0).contains("1 rows must precede it"));
        assert!(said(5..9, 50..60, 9).contains("after the 9 skipped rows"));
        assert_eq!(Identification { skip: 8, ..task(0..2, 1..100, true) }.check("s", 100), Ok(()));
    }
}

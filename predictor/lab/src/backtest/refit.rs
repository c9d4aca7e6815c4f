//! Batch models in a rolling backtest: fitted on the warm-up, and refitted at a fixed interval of rows.
//!
//! The regressors of log speed are its lags, the drivers at the boundary and their lags, and the logarithm of
//! the next batch. A missing reading is replaced by the mean of its column. Constant columns are left out.

use evenstep_core::forecast::fit::{FitError, Regression};
use evenstep_core::series::DriverSet;

use super::recipes::{RecipeName, Tuning};
use super::rolling::{JobModel, Prediction};
use crate::batch::{Lags, Recipe, System};

/// Number of recent values whose range, extended by [`RANGE_MARGIN`], bounds the forecasts.
const RANGE_ROWS: usize = 20;
/// Margin of log speed beyond the range, about 5 %.
const RANGE_MARGIN: f64 = 0.05;
/// A column is constant if its readings differ by less than this share of the largest.
const CONSTANT: f64 = 1e-12;

/// Schedule and settings of the fits of batch models.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Refits {
    /// Maximum number of most recent rows per fit; all rows if `None`.
    pub window: Option<usize>,
    /// Number of rows before a first, provisional fit within the warm-up, for step times that count from
    /// there. It does not affect forecasts after the warm-up.
    pub early: Option<usize>,
    /// Rows between fits; `None` for a single fit after the warm-up.
    pub every: Option<usize>,
    /// Number of lags of log speed.
    pub lags_y: usize,
    /// Number of lags of the drivers, in addition to their reading at the boundary.
    pub lags_u: usize,
    /// Rows between consecutive lags.
    pub lag_stride: usize,
    /// Forecast horizon in rows.
    pub horizon: usize,
    /// Settings of the models.
    pub tuning: Tuning,
}

/// Input for the construction of a model.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// Names of the drivers.
    pub drivers: &'a [String],
    /// Number of warm-up rows of each worker.
    pub warmup_rows: &'a [usize],
    /// Schedule and settings of the fits.
    pub refits: &'a Refits,
}

/// Batch models, one per worker.
pub struct RefittedModel {
    recipe: Box<dyn Recipe>,
    refits: Refits,
    lags: Lags,
    /// Whether each driver is an input.
    taken: Vec<bool>,
    workers: Vec<History>,
}

/// History of one worker.
#[derive(Default)]
struct History {
    warmup_rows: usize,
    /// Log speed by row.
    y: Vec<f64>,
    /// By row: the drivers read after it, and the logarithm of the batch of the row that is then forecast.
    u: Vec<Vec<Option<f64>>>,
    fitted: Option<Fitted>,
    failure: Option<String>,
}

struct Fitted {
    model: Box<dyn Regression>,
    columns: Vec<Column>,
}

/// A column that is not constant, and the replacement for its missing readings.
#[derive(Clone, Copy)]
struct Column {
    at: usize,
    mean: f64,
}

impl RefittedModel {
    /// Creates models without history.
    ///
    /// # Errors
    /// [`FitError::Setting`] if a setting of the recipe is out of range.
    pub fn new(recipe: RecipeName, setup: &Setup<'_>) -> Result<Self, FitError> {
        let refits = *setup.refits;
        // Inputs are assigned to the previous row, so the reading at the boundary is the first lag.
        let lags = Lags {
            y: refits.lags_y,
            u: refits.lags_u + 1,
            current: false,
            stride: refits.lag_stride,
            horizon: refits.horizon,
        };
        let roles = DriverSet::new(setup.drivers.iter().cloned()).roles();
        let choosy = recipe.limits_drivers() && roles.iter().any(Option::is_some);
        let taken = roles.iter().map(|role| !choosy || role.is_some()).collect();
        let history = |warmup_rows: &usize| History { warmup_rows: *warmup_rows, ..History::default() };
        let workers = setup.warmup_rows.iter().map(history).collect();
        Ok(Self { recipe: recipe.recipe(refits.tuning)?, refits, lags, taken, workers })
    }
}

impl JobModel for RefittedModel {
    fn boundary(&mut self, worker: usize, drivers: &[Option<f64>]) {
        let history = &mut self.workers[worker];
        if !history.y.is_empty() {
            let taken =
                drivers.iter().zip(&self.taken).filter(|(_, taken)| **taken).map(|(reading, _)| *reading);
            let inputs = taken.chain([None]);
            history.u.push(inputs.collect());
        }
    }

    fn forecast(&mut self, worker: usize, batch: u64) -> Option<Prediction> {
        let history = &mut self.workers[worker];
        *history.u.last_mut()?.last_mut()? = Some((batch as f64).ln());
        let log_speed = history.predict(&self.lags)?;
        Some(Prediction { speed: log_speed.exp(), interval: None })
    }

    fn observe(&mut self, worker: usize, batch: u64, compute_time_s: f64) {
        let history = &mut self.workers[worker];
        history.y.push((batch as f64 / compute_time_s).ln());
        // The next forecast is the one of this row.
        let next = history.y.len() + self.refits.horizon - 1;
        let is_due =
            |since: usize| since == 0 || self.refits.every.is_some_and(|every| since.is_multiple_of(every));
        if self.refits.early == Some(next) || next.checked_sub(history.warmup_rows).is_some_and(is_due) {
            match history.fit(self.recipe.as_ref(), &self.lags, self.refits.window) {
                Ok(fitted) => history.fitted = Some(fitted),
                // An earlier fit remains in use.
                Err(error) => history.failure = Some(error.to_string()),
            }
        }
    }

    fn is_provisional_in_warmup(&self) -> bool {
        true
    }

    fn failure(&self, worker: usize) -> Option<String> {
        self.workers[worker].failure.clone()
    }
}

impl History {
    fn fit(&self, recipe: &dyn Recipe, lags: &Lags, window: Option<usize>) -> Result<Fitted, FitError> {
        let from = self.y.len() - window.unwrap_or(self.y.len()).min(self.y.len());
        let (y, u) = (&self.y[from..], &self.u[from.min(self.u.len())..]);
        let columns = columns(u);
        let inputs: Vec<Vec<f64>> = u.iter().map(|row| filled(row, &columns)).collect();
        let (table, targets) = lags.table(System { y, u: &inputs }, 0..y.len());
        let model = recipe.fit_rows(&table, &targets)?;
        Ok(Fitted { model, columns })
    }

    /// Forecasts log speed one horizon ahead, limited to the range of recent values.
    fn predict(&self, lags: &Lags) -> Option<f64> {
        let fitted = self.fitted.as_ref()?;
        let reach = lags.reach();
        let from = (self.y.len() + lags.horizon - 1).checked_sub(reach)?;
        let inputs: Vec<Vec<f64>> = self.u[from..].iter().map(|row| filled(row, &fitted.columns)).collect();
        let log_speed = fitted.model.predict_row(&lags.row(&self.y[from..], &inputs, reach));
        let recent = &self.y[self.y.len().saturating_sub(RANGE_ROWS)..];
        let low = recent.iter().copied().fold(f64::INFINITY, f64::min);
        let high = recent.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(log_speed.clamp(low - RANGE_MARGIN, high + RANGE_MARGIN))
    }
}

/// Returns the columns that are not constant.
fn columns(u: &[Vec<Option<f64>>]) -> Vec<Column> {
    let width = u.first().map_or(0, Vec::len);
    let column = |at: usize| {
        let known: Vec<f64> = u.iter().filter_map(|row| row[at]).collect();
        let low = known.iter().copied().fold(f64::INFINITY, f64::min);
        let high = known.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let says_something = high - low > CONSTANT * low.abs().max(high.abs());
        says_something.then(|| Column { at, mean: known.iter().sum::<f64>() / known.len() as f64 })
    };
    (0..width).filter_map(column).collect()
}

fn filled(row: &[Option<f64>], columns: &[Column]) -> Vec<f64> {
    columns.iter().map(|column| row[column.at].unwrap_or(column.mean)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TUNING: Tuning =
        Tuning { degree: 3, terms: crate::batch::Terms::Automatic, seed: 1, thorough: false };

    fn model(refits: &Refits, warmup_rows: usize) -> RefittedModel {
        let setup = Setup { drivers: &["load".into()], warmup_rows: &[warmup_rows], refits };
        RefittedModel::new(RecipeName::Ols, &setup).unwrap()
    }

    fn refits(horizon: usize) -> Refits {
        Refits {
            window: None,
            early: None,
            every: None,
            lags_y: 1,
            lags_u: 0,
            lag_stride: 1,
            horizon,
            tuning: TUNING,
        }
    }

    /// Speed depends only on the driver read just before the iteration and on the batch: log speed = 5 -
    /// driver + 0.5 log batch. One reading in the middle is missing. All pairs of driver and batch occur
    /// within 20 rows, so the range limit has no effect.
    fn rows() -> Vec<(Option<f64>, u64, f64)> {
        let row = |k: u64| {
            let load = (k * 3 % 5) as f64 / 5.0;
            let batch = 16 + (k * 3 % 4) * 8;
            ((k != 60).then_some(load), batch, (5.0 - load).exp() * (batch as f64).sqrt())
        };
        (0..80).map(row).collect()
    }

    #[test]
    fn takes_the_reading_at_the_boundary_and_the_batch_to_come() {
        let mut model = model(&refits(1), 40);
        let mut forecasts = 0;
        for (k, (load, batch, speed)) in rows().into_iter().enumerate() {
            model.boundary(0, &[load]);
            let forecast = model.forecast(0, batch);
            assert_eq!(forecast.is_some(), k >= 40, "row {k}");
            if let Some(forecast) = forecast {
                // A missing reading is replaced by the mean of the others, 0.4.
                let (expected, within) = match load {
                    Some(_) => (speed.ln(), 1e-6),
                    None => (4.6 + 0.5 * (batch as f64).ln(), 0.02),
                };
                assert!((forecast.speed.ln() - expected).abs() < within, "row {k}: {}", forecast.speed);
                forecasts += 1;
            }
            model.observe(0, batch, batch as f64 / speed);
        }
        assert_eq!(forecasts, 40);
    }

    /// Two rows ahead, a speed with period 2 equals the latest value. The first forecast is for row 10,
    /// made at the boundary of row 9.
    #[test]
    fn a_forecast_two_rows_ahead_uses_two_rows_less() {
        let mut model = model(&refits(2), 10);
        for k in 0..20u32 {
            model.boundary(0, &[Some(1.0)]);
            let forecast = model.forecast(0, 8);
            assert_eq!(forecast.is_some(), k >= 9, "row {k}");
            if let Some(forecast) = forecast {
                let ahead = if (k + 1) % 2 == 0 { 100.0 } else { 150.0 };
                assert!((forecast.speed - ahead).abs() < 1e-6, "row {k}: {}", forecast.speed);
            }
            model.observe(0, 8, 8.0 / if k % 2 == 0 { 100.0 } else { 150.0 });
        }
    }

    /// A jump of a driver on which the fit relied. Without the range limit the forecast would be off by e^50.
    #[test]
    fn forecasts_stay_in_the_recent_range() {
        let mut model = model(&refits(1), 40);
        for k in 0..60u32 {
            let load = f64::from(k * 7919 % 13 % 2);
            model.boundary(0, &[Some(load)]);
            model.observe(0, 8, 8.0 / (100.0 - 10.0 * load));
        }
        model.boundary(0, &[Some(-500.0)]);
        let speed = model.forecast(0, 8).unwrap().speed;
        assert!((speed / 100.0).ln() <= 0.05 + 1e-9 && speed > 100.0, "{speed}");
    }

    /// After a change of the system, a window that holds only new rows gives correct forecasts. A single fit
    /// does not.
    #[test]
    fn a_window_forgets_and_a_refit_notices() {
        let walk = |refits: &Refits| {
            let mut model = model(refits, 40);
            let mut error = 0.0;
            for k in 0..120u64 {
                let load = (k * 7919 % 13) as f64 / 13.0;
                let speed = (if k < 50 { load } else { -load }).exp() * 100.0;
                model.boundary(0, &[Some(load)]);
                if k >= 110 {
                    error += (model.forecast(0, 8).unwrap().speed / speed).ln().abs();
                }
                model.observe(0, 8, 8.0 / speed);
            }
            error
        };
        let fixed = walk(&refits(1));
        let moving = walk(&Refits { window: Some(30), every: Some(10), ..refits(1) });
        assert!(moving < 1e-6 && fixed > 1.0, "{moving} {fixed}");
    }

    /// An early fit gives forecasts during the warm-up and is replaced after it.
    #[test]
    fn an_early_fit_does_not_change_later_results() {
        let walk = |early: Option<usize>| -> Vec<Option<Prediction>> {
            let mut model = model(&Refits { early, ..refits(1) }, 40);
            let one = |(load, batch, speed): (Option<f64>, u64, f64)| {
                model.boundary(0, &[load]);
                let forecast = model.forecast(0, batch);
                model.observe(0, batch, batch as f64 / speed);
                forecast
            };
            rows().into_iter().map(one).collect()
        };
        let (with, without) = (walk(Some(30)), walk(None));
        assert_eq!(with.iter().position(Option::is_some), Some(30));
        assert_eq!(without.iter().position(Option::is_some), Some(40));
        assert_eq!(with[40..], without[40..]);
    }

    #[test]
    fn too_little_history_is_said() {
        let mut model = model(&Refits { lags_y: 6, ..refits(1) }, 6);
        for _ in 0..8 {
            model.boundary(0, &[Some(1.0)]);
            assert_eq!(model.forecast(0, 8), None);
            model.observe(0, 8, 0.5);
        }
        assert!(model.failure(0).is_some());
    }
}

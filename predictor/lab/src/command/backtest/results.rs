//! What came out, as it is printed, written and drawn.

use serde::Serialize;

use crate::backtest::{Accuracy, Calibration, Regret};

/// A whole backtest.
#[derive(Debug, Serialize)]
pub struct Results {
    /// One for each series, in the order of the traces.
    pub series: Vec<SeriesResult>,
    /// Step times by model, over all steps; empty where there is only one series.
    pub step_time: Vec<StepTime>,
    /// The same for an even split, which believes nothing.
    pub step_time_even: Option<Ratio>,
    /// By trace, where there are several jobs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub step_time_by_trace: Vec<TraceStepTime>,
    /// Means over all series by model.
    pub mean: Vec<MeanResult>,
}

/// One series.
#[derive(Debug, Serialize)]
pub struct SeriesResult {
    /// The file, as it was given, or the job.
    pub trace: String,
    /// The series: its id, or the file's name without extension.
    pub unique_id: String,
    /// Rows there are.
    pub rows: usize,
    /// Rows that count.
    pub tested: usize,
    /// In the order they were asked for.
    pub models: Vec<ModelResult>,
    /// What was forecast, row by row.
    #[serde(skip)]
    pub forecasts: Forecasts,
}

/// Every forecast of a series.
#[derive(Debug, Default)]
pub struct Forecasts {
    /// When each row came.
    pub at: Vec<String>,
    /// The number of the first row.
    pub first_row: usize,
    /// What came.
    pub y: Vec<f64>,
    /// By model, then row.
    pub by_model: Vec<Vec<Option<Estimate>>>,
}

/// A forecast of one row.
#[derive(Debug, Clone, Copy)]
pub struct Estimate {
    /// What was expected.
    pub y_hat: f64,
    /// Its interval, where there is one.
    pub interval: Option<(f64, f64)>,
}

/// One model on one series. What is unknown is null.
#[derive(Debug, Serialize)]
pub struct ModelResult {
    /// Its name.
    pub model: String,
    /// Root mean squared error.
    pub rmse: Option<f64>,
    /// Mean absolute error.
    pub mae: Option<f64>,
    /// Mean absolute error as a share of the value.
    pub mape: Option<f64>,
    /// Root relative squared error.
    pub rrse: Option<f64>,
    /// Mean squared error over the variance.
    pub nmse: Option<f64>,
    /// Root mean squared error over that of the last value.
    pub rmse_rel_last: Option<f64>,
    /// Share of rows in their interval.
    pub coverage: Option<f64>,
    /// Mean width of the interval as a share of the forecast.
    pub width: Option<f64>,
    /// Seconds of learning.
    pub fit_s: Option<f64>,
    /// Microseconds of a forecast.
    pub predict_us: Option<f64>,
    /// In system identification: whether inputs of the row itself were seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_inputs: Option<bool>,
    /// Why there are no numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl ModelResult {
    /// From what was measured.
    pub fn new(
        model: String,
        accuracy: Option<Accuracy>,
        last: Option<Accuracy>,
        calibration: Option<Calibration>,
    ) -> Self {
        // Of a constant series the last value makes no error but rounding.
        let last = last.filter(|last| last.rrse.is_some());
        let relative = accuracy.zip(last).map(|(ours, last)| ours.rmse / last.rmse);
        Self {
            model,
            rmse: accuracy.map(|accuracy| accuracy.rmse),
            mae: accuracy.map(|accuracy| accuracy.mae),
            mape: accuracy.and_then(|accuracy| accuracy.mape),
            rrse: accuracy.and_then(|accuracy| accuracy.rrse),
            nmse: accuracy.and_then(|accuracy| accuracy.nmse),
            rmse_rel_last: relative.filter(|relative| relative.is_finite()),
            coverage: calibration.map(|calibration| calibration.coverage),
            width: calibration.map(|calibration| calibration.width),
            fit_s: None,
            predict_us: None,
            current_inputs: None,
            failure: None,
        }
    }
}

/// Step times over the oracle's.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ratio {
    /// The mean.
    pub mean_over_oracle: Option<f64>,
    /// 95 % of the steps are at or under it.
    pub p95_over_oracle: Option<f64>,
}

impl From<Option<Regret>> for Ratio {
    fn from(regret: Option<Regret>) -> Self {
        Self {
            mean_over_oracle: regret.map(|regret| regret.mean_over_oracle),
            p95_over_oracle: regret.map(|regret| regret.p95_over_oracle),
        }
    }
}

/// Step times of one model.
#[derive(Debug, Serialize)]
pub struct StepTime {
    /// Its name.
    pub model: String,
    /// Over the oracle's.
    #[serde(flatten)]
    pub ratio: Ratio,
}

/// Step times of one job.
#[derive(Debug, Serialize)]
pub struct TraceStepTime {
    /// Its trace.
    pub trace: String,
    /// By model.
    pub step_time: Vec<StepTime>,
}

/// One model over all series.
#[derive(Debug, Serialize)]
pub struct MeanResult {
    /// Its name.
    pub model: String,
    /// Mean of the series' errors over those of the last value; null where one is unknown.
    pub rmse_rel_last: Option<f64>,
    /// The largest of them.
    pub worst_rel_last: Option<f64>,
    /// Mean coverage.
    pub coverage: Option<f64>,
    /// Mean width.
    pub width: Option<f64>,
}

/// Means over series, by model.
pub fn means(series: &[SeriesResult]) -> Vec<MeanResult> {
    let Some(first) = series.first() else { return Vec::new() };
    let of = |at: usize, number: fn(&ModelResult) -> Option<f64>| {
        series.iter().map(|series| number(&series.models[at])).collect::<Option<Vec<f64>>>()
    };
    let mean = |numbers: Vec<f64>| numbers.iter().sum::<f64>() / numbers.len() as f64;
    let one = |(at, model): (usize, &ModelResult)| MeanResult {
        model: model.model.clone(),
        rmse_rel_last: of(at, |model| model.rmse_rel_last).map(mean),
        worst_rel_last: of(at, |model| model.rmse_rel_last)
            .and_then(|numbers| numbers.into_iter().reduce(f64::max)),
        coverage: of(at, |model| model.coverage).map(mean),
        width: of(at, |model| model.width).map(mean),
    };
    first.models.iter().enumerate().map(one).collect()
}

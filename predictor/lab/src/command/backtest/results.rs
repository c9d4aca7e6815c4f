//! Results of a backtest, for all outputs.

use serde::Serialize;

use crate::backtest::{Accuracy, Calibration, Regret};

/// Results of a backtest.
#[derive(Debug, Serialize)]
pub struct Results {
    /// Sentences about rows that are left out, and how workers are aligned.
    pub notes: Vec<String>,
    /// Results by series, in the order of the traces.
    pub series: Vec<SeriesResult>,
    /// Step times by model over all steps; empty if there is only one series.
    pub step_time: Vec<StepTime>,
    /// Step times of an even split, which uses no forecast.
    pub step_time_even: Option<Ratio>,
    /// Step times by trace if there are several jobs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub step_time_by_trace: Vec<TraceStepTime>,
    /// Means over all series by model.
    pub mean: Vec<MeanResult>,
}

/// Results of one series.
#[derive(Debug, Serialize)]
pub struct SeriesResult {
    /// The file as given on the command line, or the job.
    pub trace: String,
    /// Id of the series, or the file name without extension.
    pub unique_id: String,
    /// Number of rows.
    pub rows: usize,
    /// Number of rows that count.
    pub tested: usize,
    /// Results by model, in the requested order.
    pub models: Vec<ModelResult>,
    /// Forecasts row by row.
    #[serde(skip)]
    pub forecasts: Forecasts,
}

/// All forecasts of a series.
#[derive(Debug, Default)]
pub struct Forecasts {
    /// Time of each row.
    pub at: Vec<String>,
    /// Number of the first row.
    pub first_row: usize,
    /// Actual values.
    pub y: Vec<f64>,
    /// Forecasts by model, then row.
    pub by_model: Vec<Vec<Option<Estimate>>>,
}

/// Forecast of one row.
#[derive(Debug, Clone, Copy)]
pub struct Estimate {
    /// The forecast value.
    pub y_hat: f64,
    /// Prediction interval, if the model has one.
    pub interval: Option<(f64, f64)>,
}

/// Results of one model on one series. Unknown values are null.
#[derive(Debug, Serialize)]
pub struct ModelResult {
    /// Name of the model.
    pub model: String,
    /// Root mean squared error.
    pub rmse: Option<f64>,
    /// Mean absolute error.
    pub mae: Option<f64>,
    /// Mean absolute error as a share of the value.
    pub mape: Option<f64>,
    /// Root relative squared error.
    pub rrse: Option<f64>,
    /// Mean squared error divided by the variance.
    pub nmse: Option<f64>,
    /// Root mean squared error divided by the error of the last value.
    pub rmse_rel_last: Option<f64>,
    /// Share of rows within their interval.
    pub coverage: Option<f64>,
    /// Mean width of the interval as a share of the forecast.
    pub width: Option<f64>,
    /// Seconds of training.
    pub fit_s: Option<f64>,
    /// Microseconds per forecast.
    pub predict_us: Option<f64>,
    /// The reason why there are no results.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl ModelResult {
    /// Builds the results from the measured errors.
    pub fn new(
        model: String,
        accuracy: Option<Accuracy>,
        last: Option<Accuracy>,
        calibration: Option<Calibration>,
    ) -> Self {
        // On a constant series the last value has only rounding errors.
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
            failure: None,
        }
    }
}

/// Step times divided by step times of the oracle.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ratio {
    /// Mean step divided by the oracle's mean step.
    pub mean_over_oracle: Option<f64>,
    /// 95th percentile of the ratio.
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
    /// Name of the model.
    pub model: String,
    /// Ratio to the oracle.
    #[serde(flatten)]
    pub ratio: Ratio,
}

/// Step times of one job.
#[derive(Debug, Serialize)]
pub struct TraceStepTime {
    /// Trace of the job.
    pub trace: String,
    /// Step times by model.
    pub step_time: Vec<StepTime>,
}

/// Results of one model over all series.
#[derive(Debug, Serialize)]
pub struct MeanResult {
    /// Name of the model.
    pub model: String,
    /// Mean over series of the error relative to the last value; null if one is unknown.
    pub rmse_rel_last: Option<f64>,
    /// Maximum over series of the same ratio.
    pub worst_rel_last: Option<f64>,
    /// Mean coverage.
    pub coverage: Option<f64>,
    /// Mean width.
    pub width: Option<f64>,
}

/// Computes means over series by model.
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

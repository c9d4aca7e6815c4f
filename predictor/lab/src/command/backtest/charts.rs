//! Charts of a backtest.

use evenstep_report::{Axis, Bar, Chart, Mark};

use super::results::{Estimate, Ratio, Results, SeriesResult};
use super::text::best;

/// Model of the forecast chart, if it was run. Otherwise the chart shows the model with the smallest error.
const CHARTED_MODEL: &str = "mix";
/// Approximate number of sections of a series over which the error is averaged.
const CHART_SECTIONS: usize = 40;

/// Charts of actual and forecast values, and of the error over time.
pub fn of_series(series: &SeriesResult) -> Vec<Chart> {
    let drawn = series.models.iter().position(|model| model.model == CHARTED_MODEL && model.rmse.is_some());
    let against = drawn.or_else(|| best(&series.models)).map(|model| actual_and_forecast(series, model));
    against.into_iter().chain([error_over_time(series)]).collect()
}

fn actual_and_forecast(series: &SeriesResult, model: usize) -> Chart {
    let name = series.models[model].model.clone();
    let forecasts = &series.forecasts;
    let x = |at: usize| (forecasts.first_row + at) as f64;
    let estimates = || {
        forecasts.by_model[model].iter().enumerate().filter_map(|(at, estimate)| Some((x(at), (*estimate)?)))
    };
    let band: Vec<(f64, f64, f64)> =
        estimates().filter_map(|(x, estimate)| estimate.interval.map(|(lo, hi)| (x, lo, hi))).collect();
    let mut marks = Vec::new();
    if !band.is_empty() {
        marks.push(Mark::Band { name: name.clone(), points: band });
    }
    marks.push(Mark::Line {
        name: "actual".into(),
        points: forecasts.y.iter().enumerate().map(|(at, y)| (x(at), *y)).collect(),
        dashed: false,
    });
    let points = estimates().map(|(x, estimate)| (x, estimate.y_hat)).collect();
    marks.push(Mark::Line { name: name.clone(), points, dashed: true });
    Chart {
        title: format!("Actual and forecast: {name}"),
        description: "Each point is one row. The band is the 90 % prediction interval.".into(),
        x: Axis::new("row", ""),
        y: Axis::new("value", ""),
        marks,
    }
}

fn error_over_time(series: &SeriesResult) -> Chart {
    let forecasts = &series.forecasts;
    let rows = forecasts.y.len().div_ceil(CHART_SECTIONS).max(1);
    let line = |model: usize| {
        let parts = forecasts.y.chunks(rows).zip(forecasts.by_model[model].chunks(rows)).enumerate();
        let point = |(part, (actual, estimates)): (usize, (&[f64], &[Option<Estimate>]))| {
            let squares: Option<f64> = actual
                .iter()
                .zip(estimates)
                .map(|(y, estimate)| Some((y - (*estimate)?.y_hat).powi(2)))
                .sum();
            let middle = forecasts.first_row as f64 + (part * rows) as f64 + actual.len() as f64 / 2.0;
            // A section with a missing forecast has no error, so the line has a gap.
            (middle, squares.map_or(f64::NAN, |squares| (squares / actual.len() as f64).sqrt()))
        };
        let name = series.models[model].model.clone();
        Mark::Line { name, points: parts.map(point).collect(), dashed: false }
    };
    Chart {
        title: "Error over time".into(),
        description: format!("Root mean squared error over {rows} rows."),
        x: Axis::new("row", ""),
        y: Axis::new("rmse", "").from_zero(),
        marks: (0..series.models.len()).map(line).collect(),
    }
}

/// Bar chart of step times.
pub fn step_times(results: &Results) -> Chart {
    let bars = |name: &str, of: fn(&Ratio) -> Option<f64>| {
        let even = results.step_time_even.iter().map(|even| ("even split", even));
        let models = results.step_time.iter().map(|step| (step.model.as_str(), &step.ratio));
        let bar =
            |(model, ratio)| Bar { category: str::to_owned(model), value: of(ratio).unwrap_or(f64::NAN) };
        Mark::Bars { name: name.into(), bars: models.chain(even).map(bar).collect() }
    };
    Chart {
        title: "Step time relative to the oracle".into(),
        description: "Lower is better. At 1 all workers finish together.".into(),
        x: Axis::new("model", ""),
        y: Axis::new("step time / oracle", ""),
        marks: vec![bars("mean", |ratio| ratio.mean_over_oracle), bars("p95", |ratio| ratio.p95_over_oracle)],
    }
}

//! Results as a self-contained HTML report.

use evenstep_report::text::number;
use evenstep_report::{Cell, Figure, Report, Section, Table};

use super::charts;
use super::results::{MeanResult, ModelResult, Ratio, Results, SeriesResult, StepTime};
use super::text::best;

/// Maximum number of series with a section; further series appear only in the means.
const SECTIONS_MAX: usize = 24;

/// Returns the whole page. `asked` is the command line.
pub fn report(results: &Results, asked: &str) -> Report {
    let mut sections = vec![
        Section::Text { heading: "Command".into(), paragraphs: vec![asked.into(), DEFINITIONS.into()] },
        Section::Figures(headline(results)),
    ];
    if results.series.len() > 1 {
        sections.push(Section::Table(means(results)));
    }
    if results.step_time_even.is_some() {
        sections.push(Section::Table(step_times(results)));
        sections.push(Section::Charts(vec![charts::step_times(results)]));
    }
    for series in results.series.iter().take(SECTIONS_MAX) {
        series_section(series, &mut sections);
    }
    if results.series.len() > SECTIONS_MAX {
        let left_out = results.series.len() - SECTIONS_MAX;
        sections.push(Section::Notice(format!(
            "{left_out} more series have no section; the means include them."
        )));
    }
    Report {
        title: "Backtest".into(),
        subtitle: format!(
            "evenstep-predictor {}: {} series",
            env!("CARGO_PKG_VERSION"),
            results.series.len()
        ),
        sections,
    }
}

const DEFINITIONS: &str = "rmse: root mean squared error. /last: rmse divided by the rmse of the last value. \
    mae: mean absolute error. mape: mean absolute error as a share of the value. rrse: rmse divided by the rmse of the mean. \
    nmse: square of rrse. coverage: share of rows within their interval, nominally 0.9. width: width of \
    the interval as a share of the forecast. fit: training time. predict: time per forecast.";

fn headline(results: &Results) -> Vec<Figure> {
    let mut figures = Vec::new();
    let ranked = results.mean.iter().filter_map(|mean| Some((mean, mean.rmse_rel_last?)));
    if let Some((mean, relative)) = ranked.min_by(|a, b| a.1.total_cmp(&b.1)) {
        figures.push(Figure {
            label: "Smallest error".into(),
            value: number(Some(relative)),
            note: format!("{}: rmse divided by the rmse of the last value, mean over series", mean.model),
        });
    }
    let steps = results.step_time.iter().filter_map(|step| Some((step, step.ratio.mean_over_oracle?)));
    if let Some((step, mean)) = steps.min_by(|a, b| a.1.total_cmp(&b.1)) {
        let even = number(results.step_time_even.and_then(|even| even.mean_over_oracle));
        figures.push(Figure {
            label: "Shortest steps".into(),
            value: number(Some(mean)),
            note: format!("{}: step time divided by the oracle's; even split: {even}", step.model),
        });
    }
    figures
}

/// A number with four significant digits, for columns with values of any magnitude.
fn cell(value: Option<f64>) -> Cell {
    Cell::significant(value, 4)
}

fn marked(name: &str, is_best: bool) -> Cell {
    if is_best { format!("{name} ★").into() } else { name.into() }
}

fn least(values: impl Iterator<Item = Option<f64>>) -> Option<usize> {
    let known = values.enumerate().filter_map(|(at, value)| Some((at, value?)));
    known.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
}

fn means(results: &Results) -> Table {
    let best = least(results.mean.iter().map(|mean| mean.rmse_rel_last));
    let row = |(at, mean): (usize, &MeanResult)| {
        let numbers = [mean.rmse_rel_last, mean.worst_rel_last, mean.coverage, mean.width];
        std::iter::once(marked(&mean.model, Some(at) == best)).chain(numbers.map(cell)).collect()
    };
    let columns = ["model", "rmse /last", "worst /last", "coverage", "width"];
    let rows = results.mean.iter().enumerate().map(row).collect();
    Table::new("Mean over all series", "★ has the smallest error.", &columns, rows)
}

fn step_times(results: &Results) -> Table {
    let best = least(results.step_time.iter().map(|step| step.ratio.mean_over_oracle));
    let numbers = |ratio: &Ratio| [cell(ratio.mean_over_oracle), cell(ratio.p95_over_oracle)];
    let row = |name: Cell, ratio: &Ratio| std::iter::once(name).chain(numbers(ratio)).collect();
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for (at, step) in results.step_time.iter().enumerate() {
        rows.push(row(marked(&step.model, Some(at) == best), &step.ratio));
    }
    rows.extend(results.step_time_even.iter().map(|even| row("even split".into(), even)));
    for job in &results.step_time_by_trace {
        let of_job = |step: &StepTime| row(format!("{}: {}", job.trace, step.model).into(), &step.ratio);
        rows.extend(job.step_time.iter().map(of_job));
    }
    let description = "Step time if the global batch is split by these forecasts, divided by the oracle's. \
        The oracle knows each speed. ★ has the shortest.";
    Table::new("Step time relative to the oracle", description, &["model", "mean", "95th percentile"], rows)
}

fn series_section(series: &SeriesResult, sections: &mut Vec<Section>) {
    let failures = series
        .models
        .iter()
        .filter_map(|model| Some(format!("{}: {}", model.model, model.failure.as_ref()?)));
    let count = format!("{} of {} rows count.", series.tested, series.rows);
    sections.push(Section::Text {
        heading: format!("{} ({})", series.unique_id, series.trace),
        paragraphs: std::iter::once(count).chain(failures).collect(),
    });
    let best = best(&series.models);
    let row = |(at, model): (usize, &ModelResult)| {
        let numbers = [
            model.rmse,
            model.rmse_rel_last,
            model.mae,
            model.mape,
            model.rrse,
            model.nmse,
            model.coverage,
            model.width,
        ];
        let times = [model.fit_s, model.predict_us.map(|us| us / 1e6)];
        let times = times.map(|time| time.map_or(Cell::Missing, Cell::Seconds));
        std::iter::once(marked(&model.model, Some(at) == best))
            .chain(numbers.map(cell))
            .chain(times)
            .collect()
    };
    let columns =
        ["model", "rmse", "/last", "mae", "mape", "rrse", "nmse", "coverage", "width", "fit", "predict"];
    let rows = series.models.iter().enumerate().map(row).collect();
    sections.push(Section::Table(Table::new("Errors", "★ has the smallest error.", &columns, rows)));
    // Each chart takes the whole width, because a series is long.
    sections.extend(charts::of_series(series).into_iter().map(|chart| Section::Charts(vec![chart])));
}

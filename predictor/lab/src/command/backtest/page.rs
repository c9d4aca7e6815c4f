//! Results as a self-contained HTML report.

use evenstep_report::text::number;
use evenstep_report::{Cell, Figure, Report, Section, Table};

use super::charts;
use super::results::{MeanResult, ModelResult, Ratio, Results, SeriesResult, TraceStepTime};
use super::text::best;

/// Maximum number of series with a section; further series appear only in the means.
const SECTIONS_MAX: usize = 24;

/// Returns the whole page. `asked` is the command line.
pub fn report(results: &Results, asked: &str) -> Report {
    let mut sections: Vec<Section> = verdict(results).map(Section::Verdict).into_iter().collect();
    sections.extend(results.notes.iter().map(|note| Section::Notice(format!("{note}."))));
    sections.push(Section::Figures(headline(results)));
    if results.step_time_even.is_some() {
        sections.push(heading("Step time"));
        sections.push(Section::Charts(vec![charts::step_times(results)]));
        sections.push(Section::Table(step_times(results)));
        if !results.step_time_by_trace.is_empty() {
            sections.push(Section::Table(step_times_by_trace(results)));
        }
    }
    if results.series.len() > 1 {
        sections.push(heading("Forecast error"));
        sections.push(Section::Table(means(results)));
        sections.push(Section::Table(errors_by_series(results)));
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
    let paragraphs = vec![asked.into(), DEFINITIONS.into()];
    sections.push(Section::Text { heading: "Command and definitions".into(), paragraphs });
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

/// A heading without text.
fn heading(words: &str) -> Section {
    Section::Text { heading: words.into(), paragraphs: Vec::new() }
}

/// Returns whether the forecasts pay, and which are best; `None` if no model has a result.
fn verdict(results: &Results) -> Option<String> {
    let ranked = results.mean.iter().filter_map(|mean| Some((&mean.model, mean.rmse_rel_last?)));
    let only = results.series.first().filter(|_| results.mean.is_empty());
    let of_one = only.iter().flat_map(|series| &series.models);
    let of_one = of_one.filter_map(|model| Some((&model.model, model.rmse_rel_last?)));
    let (model, relative) = ranked.chain(of_one).min_by(|a, b| a.1.total_cmp(&b.1))?;
    let change = |ratio: f64, of: &str| match ratio {
        ratio if ratio < 1.0 => format!("{:.1} % below {of}", 100.0 * (1.0 - ratio)),
        ratio => format!("{:.1} % above {of}", 100.0 * (ratio - 1.0)),
    };
    let error = format!(
        "The best forecast is {model}: its error is {}.",
        change(relative, "that of repeating the last value")
    );
    let steps = results.step_time.iter().filter_map(|step| Some((&step.model, step.ratio.mean_over_oracle?)));
    let best = steps.min_by(|a, b| a.1.total_cmp(&b.1));
    let even = results.step_time_even.and_then(|even| even.mean_over_oracle);
    let Some(((model, ratio), even)) = best.zip(even) else { return Some(error) };
    let pays = if ratio < PAYS * even {
        "Allocations by forecast pay"
    } else {
        "Allocations by forecast do not pay"
    };
    Some(format!(
        "{pays}: with {model}, steps are {}. {error}",
        change(ratio / even, "the step time of even shares")
    ))
}

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

/// Step times relative to even shares below which forecasts pay.
const PAYS: f64 = 0.98;

/// Name of a row, and its values by model.
type MatrixRow = (String, Vec<(String, Option<f64>)>);

/// A table of values by row and model, in which the smallest value of each row is marked.
fn matrix(title: &str, description: &str, first: &str, rows: &[MatrixRow]) -> Table {
    let mut models: Vec<String> = Vec::new();
    for (model, _) in rows.iter().flat_map(|(_, values)| values) {
        if !models.contains(model) {
            models.push(model.clone());
        }
    }
    let row = |(name, values): &MatrixRow| -> Vec<Cell> {
        let of =
            |model: &String| values.iter().find(|(known, _)| known == model).and_then(|(_, value)| *value);
        let best = models.iter().filter_map(of).reduce(f64::min);
        let cell = |model| match of(model) {
            Some(value) if Some(value) == best => Cell::Best { value, decimals: MATRIX_DECIMALS },
            value => value.map_or(Cell::Missing, |value| Cell::number(value, MATRIX_DECIMALS)),
        };
        std::iter::once(name.clone().into()).chain(models.iter().map(cell)).collect()
    };
    let cells = rows.iter().map(row).collect();
    let columns = std::iter::once(first.to_owned()).chain(models.iter().cloned()).collect();
    Table { title: title.into(), description: description.into(), columns, rows: cells }
}

const MATRIX_DECIMALS: usize = 2;

fn step_times_by_trace(results: &Results) -> Table {
    let row = |job: &TraceStepTime| -> MatrixRow {
        let values = job.step_time.iter().map(|step| (step.model.clone(), step.ratio.mean_over_oracle));
        (job.trace.clone(), values.collect())
    };
    let rows: Vec<MatrixRow> = results.step_time_by_trace.iter().map(row).collect();
    let description =
        "Mean step time divided by the oracle's, by trace and model. ★ is the shortest of a trace.";
    matrix("Step time by trace", description, "trace", &rows)
}

fn errors_by_series(results: &Results) -> Table {
    let row = |series: &SeriesResult| -> MatrixRow {
        let values = series.models.iter().map(|model| (model.model.clone(), model.rmse_rel_last));
        (format!("{} ({})", series.unique_id, file_name(&series.trace)), values.collect())
    };
    let rows: Vec<MatrixRow> = results.series.iter().map(row).collect();
    let description = "Error (rmse) divided by the error of the last value, by series and model. ★ is the smallest of a series.";
    matrix("Forecast error by series", description, "series", &rows)
}

/// The name of a trace without its folder.
fn file_name(trace: &str) -> &str {
    trace.rsplit('/').next().unwrap_or(trace)
}

/// A number with three significant digits, for columns with values of any magnitude.
fn cell(value: Option<f64>) -> Cell {
    Cell::significant(value, 3)
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
    let description = "Step time if the global batch is split by these forecasts, divided by the oracle's. \
        The oracle knows each speed. ★ has the shortest.";
    Table::new("Step time relative to the oracle", description, &["model", "mean", "p95"], rows)
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

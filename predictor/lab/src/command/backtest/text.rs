//! Results as text.

use evenstep_report::text::{aligned, line, number};

use super::results::{MeanResult, ModelResult, Ratio, Results, SeriesResult};

/// Maximum number of series with a table; further series appear only in the means.
const SERIES_PRINTED_MAX: usize = 40;

/// Returns the whole text.
pub fn table(results: &Results) -> String {
    let mut text = String::new();
    for series in results.series.iter().take(SERIES_PRINTED_MAX) {
        one_series(&mut text, series);
    }
    if results.series.len() > SERIES_PRINTED_MAX {
        let left_out = results.series.len() - SERIES_PRINTED_MAX;
        line(
            &mut text,
            format_args!(
                "{left_out} more series are not shown; --json and --csv list all, and the means \
                below include them\n"
            ),
        );
    }
    if results.series.len() > 1 {
        means(&mut text, &results.mean, results.series.len());
    }
    step_times(&mut text, results);
    for note in &results.notes {
        line(&mut text, format_args!("({note})"));
    }
    text
}

fn one_series(text: &mut String, series: &SeriesResult) {
    line(
        text,
        format_args!(
            "{} ({}): {} of {} rows count",
            series.unique_id, series.trace, series.tested, series.rows
        ),
    );
    let mut rows = vec![
        ["model", "rmse", "mae", "mape", "rrse", "nmse", "/last", "coverage", "width", "fit s", "predict us"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let best = best(&series.models);
    for (at, model) in series.models.iter().enumerate() {
        let numbers = [
            model.rmse,
            model.mae,
            model.mape,
            model.rrse,
            model.nmse,
            model.rmse_rel_last,
            model.coverage,
            model.width,
            model.fit_s,
            model.predict_us,
        ];
        let name = if Some(at) == best { format!("{} *", model.model) } else { model.model.clone() };
        rows.push(std::iter::once(name).chain(numbers.map(number)).collect());
    }
    aligned(text, &rows);
    for model in &series.models {
        if let Some(failure) = &model.failure {
            line(text, format_args!("  {}: {failure}", model.model));
        }
    }
    text.push('\n');
}

/// Returns the index of the model with the smallest error.
pub fn best(models: &[ModelResult]) -> Option<usize> {
    let known = models.iter().enumerate().filter_map(|(at, model)| Some((at, model.rmse?)));
    known.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
}

fn means(text: &mut String, means: &[MeanResult], series: usize) {
    line(text, format_args!("mean over {series} series"));
    let mut rows = vec![["model", "/last", "worst /last", "coverage", "width"].map(str::to_owned).to_vec()];
    for mean in means {
        let numbers = [mean.rmse_rel_last, mean.worst_rel_last, mean.coverage, mean.width];
        rows.push(std::iter::once(mean.model.clone()).chain(numbers.map(number)).collect());
    }
    aligned(text, &rows);
    text.push('\n');
}

fn step_times(text: &mut String, results: &Results) {
    let Some(even) = results.step_time_even else { return };
    line(text, format_args!("step time of an allocation by these forecasts, divided by the oracle's"));
    let row = |name: &str, ratio: &Ratio| {
        vec![name.to_owned(), number(ratio.mean_over_oracle), number(ratio.p95_over_oracle)]
    };
    let mut rows = vec![["model", "mean", "p95"].map(str::to_owned).to_vec()];
    rows.extend(results.step_time.iter().map(|step_time| row(&step_time.model, &step_time.ratio)));
    rows.push(row("(even split)", &even));
    aligned(text, &rows);
    for job in &results.step_time_by_trace {
        line(text, format_args!("\n{}", job.trace));
        let mut rows = vec![["model", "mean", "p95"].map(str::to_owned).to_vec()];
        rows.extend(job.step_time.iter().map(|step_time| row(&step_time.model, &step_time.ratio)));
        aligned(text, &rows);
    }
}

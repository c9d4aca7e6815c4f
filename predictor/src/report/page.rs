//! The page of a job: its summary, and charts of its history.

use evenstep_protocol::{HistoryView, SlowWorker, SummaryView, WorkerHistory};
use evenstep_report::{Axis, Cell, Chart, Figure, Mark, Report, Section, Table};
use jiff::Timestamp;

use crate::number_format;

/// Maximum number of workers in a chart of workers: the slow ones first, then the others by id.
const WORKERS_MAX: usize = 8;
/// End of the scale of speeds, over the largest of them.
const SCALE_END: f64 = 1.08;

/// Returns the page. `command` is the command line that writes it again.
pub fn page(summary: &SummaryView, history: &HistoryView, command: &str) -> Report {
    let heading = |words: &str| Section::Text { heading: words.into(), paragraphs: Vec::new() };
    let shown = shown(summary, history);
    let mut sections = vec![
        Section::Verdict(summary.verdict.clone()),
        Section::Text { heading: String::new(), paragraphs: summary.lines.clone() },
        Section::Figures(figures(summary)),
        heading("Steps"),
        Section::Charts(vec![step_times(history)]),
        heading("Predicted and measured speeds"),
        Section::Charts(speeds(history, &shown, &summary.unit)),
        heading("Shares"),
        Section::Charts(vec![batches(history, &shown, &summary.unit)]),
    ];
    if !summary.slow.is_empty() {
        sections.extend([heading("Slow workers"), Section::Table(slow(&summary.slow))]);
    }
    sections.push(Section::Text { heading: "Command".into(), paragraphs: vec![command.to_owned()] });
    Report { title: format!("Job {}", summary.job_id), subtitle: subtitle(history), sections }
}

/// Dates and duration of the charts, the number of workers, and the version of evenstep.
fn subtitle(history: &HistoryView) -> String {
    let version = format!("evenstep {}", env!("CARGO_PKG_VERSION"));
    let ends = history.at_unix_ms.first().zip(history.at_unix_ms.last());
    let date = |unix_ms: i64, form: &str| {
        Some(Timestamp::from_millisecond(unix_ms).ok()?.strftime(form).to_string())
    };
    let dates = ends.and_then(|(first, last)| {
        let day = "%Y-%m-%d";
        let form = if date(*first, day) == date(*last, day) { "%H:%M UTC" } else { "%Y-%m-%d %H:%M UTC" };
        let lasted = number_format::span(last.saturating_sub(*first).max(0) as f64 / 1e3);
        Some(format!("{} to {} ({lasted})", date(*first, "%Y-%m-%d %H:%M")?, date(*last, form)?))
    });
    let workers = number_format::count(history.workers.len(), "worker");
    dates.into_iter().chain([workers, version]).collect::<Vec<_>>().join(", ")
}

fn figures(summary: &SummaryView) -> Vec<Figure> {
    let mut figures = vec![Figure::new("iterations", number_format::whole(summary.iterations), "")];
    if let Some(gain) = summary.gain {
        let note = format!("90 % interval {:.2}x to {:.2}x", gain.lower, gain.upper);
        figures.push(Figure::new("gain", format!("{:.2}x", gain.ratio), note));
    }
    if let Some(saved) = summary.time_saved {
        let interval =
            format!("{} to {}", number_format::span(saved.lower_s), number_format::span(saved.upper_s));
        figures.push(Figure::new("time saved", number_format::span(saved.seconds), interval));
    }
    if let Some(share) = summary.waiting_share {
        let lost =
            summary.time_lost_s.map_or_else(String::new, |lost_s| number_format::span(lost_s) + " so far");
        figures.push(Figure::new("time lost waiting", number_format::share(Some(share)), lost));
    }
    if let Some(error) = summary.error_ratio {
        figures.push(Figure::new(
            "forecast error",
            number_format::share(Some(error)),
            "of the latest iterations",
        ));
    }
    figures
}

fn shown<'a>(summary: &SummaryView, history: &'a HistoryView) -> Vec<&'a WorkerHistory> {
    let place = |worker: &WorkerHistory| summary.slow.iter().position(|slow| slow.worker == worker.worker);
    let mut workers: Vec<&WorkerHistory> = history.workers.iter().collect();
    workers.sort_by_key(|worker| place(worker).unwrap_or(usize::MAX));
    workers.truncate(WORKERS_MAX);
    workers
}

fn points(history: &HistoryView, values: impl Iterator<Item = Option<f64>>) -> Vec<(f64, f64)> {
    let iterations = history.iterations.iter().map(|iteration| *iteration as f64);
    iterations.zip(values.map(|value| value.unwrap_or(f64::NAN))).collect()
}

fn line(history: &HistoryView, name: &str, values: &[Option<f64>], dashed: bool) -> Mark {
    Mark::Line { name: name.into(), points: points(history, values.iter().copied()), dashed }
}

fn step_times(history: &HistoryView) -> Chart {
    Chart {
        title: "Step time".into(),
        description: "Measured and predicted time of each step, and the estimated time with even shares."
            .into(),
        x: Axis::new("iteration", ""),
        y: Axis::new("step time", "s").from_zero(),
        marks: vec![
            line(history, "measured", &history.step_time_s, false),
            line(history, "predicted", &history.predicted_step_time_s, true),
            line(history, "with even shares", &history.even_step_time_s, true),
        ],
    }
}

/// A chart for each worker, all with one scale.
fn speeds(history: &HistoryView, shown: &[&WorkerHistory], unit: &str) -> Vec<Chart> {
    let speeds =
        shown.iter().flat_map(|of| of.predicted_samples_per_s.iter().chain(&of.actual_samples_per_s));
    let end = speeds.flatten().copied().fold(0.0, f64::max) * SCALE_END;
    shown.iter().map(|worker| speed(history, worker, unit, end)).collect()
}

fn speed(history: &HistoryView, worker: &WorkerHistory, unit: &str, end: f64) -> Chart {
    let interval =
        history.iterations.iter().zip(&worker.lower_samples_per_s).zip(&worker.upper_samples_per_s);
    let interval = interval.map(|((iteration, lower), upper)| {
        (*iteration as f64, lower.unwrap_or(f64::NAN), upper.unwrap_or(f64::NAN))
    });
    let y = Axis::new("speed", format!("{unit}/s")).from_zero();
    Chart {
        title: worker.worker.to_string(),
        description: "The band is the 90 % interval of the prediction. All workers have one scale.".into(),
        x: Axis::new("iteration", ""),
        y: if end > 0.0 { y.up_to(end) } else { y },
        // A name has its colour by its place, which is the same in the chart of step times.
        marks: vec![
            line(history, "measured", &worker.actual_samples_per_s, false),
            line(history, "predicted", &worker.predicted_samples_per_s, true),
            Mark::Band { name: "predicted".into(), points: interval.collect() },
        ],
    }
}

fn batches(history: &HistoryView, shown: &[&WorkerHistory], unit: &str) -> Chart {
    let batch = |worker: &&WorkerHistory| {
        let values = worker.local_batch.iter().map(|batch| batch.map(|batch| batch as f64));
        Mark::Line { name: worker.worker.to_string(), points: points(history, values), dashed: false }
    };
    Chart {
        title: "Local batches".into(),
        description: format!("Number of {unit} of each worker, at most {WORKERS_MAX} workers."),
        x: Axis::new("iteration", ""),
        y: Axis::new("local batch", unit).from_zero(),
        marks: shown.iter().map(batch).collect(),
    }
}

fn slow(workers: &[SlowWorker]) -> Table {
    let row = |slow: &SlowWorker| {
        vec![
            Cell::Text(slow.worker.to_string()),
            Cell::Number { value: slow.speed_ratio, decimals: 2 },
            Cell::Number { value: 100.0 * slow.iterations_share, decimals: 0 },
            Cell::Text(slow.reason.clone()),
        ]
    };
    Table::new(
        "",
        "Speed over the median speed of the others, in the iterations in which the worker was slow.",
        &["worker", "speed ratio", "iterations (%)", "reason"],
        workers.iter().map(row).collect(),
    )
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::{GainView, JobId, SavedView, WorkerId};

    use super::*;

    fn history() -> HistoryView {
        let worker = |(at, speed): (usize, f64)| WorkerHistory {
            worker: WorkerId::new(format!("node-a/{at}")).unwrap(),
            local_batch: vec![Some(32); 2],
            predicted_samples_per_s: vec![Some(speed); 2],
            lower_samples_per_s: vec![Some(0.9 * speed); 2],
            upper_samples_per_s: vec![Some(9.0 * speed); 2],
            actual_samples_per_s: vec![Some(speed); 2],
            compute_time_s: vec![Some(0.0116); 2],
            barrier_wait_s: vec![None; 2],
        };
        HistoryView {
            job_id: JobId::new("job").unwrap(),
            every: 1,
            attempts: vec![1; 2],
            iterations: vec![0, 1],
            // 2026-11-28 23:00 UTC, and 90 minutes later.
            at_unix_ms: vec![1_795_906_800_000, 1_795_912_200_000],
            step_time_s: vec![Some(0.0116); 2],
            predicted_step_time_s: vec![Some(0.0116); 2],
            even_step_time_s: vec![Some(0.02); 2],
            lr_multiplier: vec![Some(1.0); 2],
            loss: vec![None; 2],
            workers: [100.0, 50.0].into_iter().enumerate().map(worker).collect(),
        }
    }

    fn summary() -> SummaryView {
        SummaryView {
            job_id: JobId::new("job").unwrap(),
            iterations: 5_000,
            unit: "tokens".into(),
            gain: Some(GainView { ratio: 1.6, lower: 1.5, upper: 1.7, iterations: 5_000 }),
            time_saved: Some(SavedView {
                seconds: 11_520.0,
                lower_s: 10_000.0,
                upper_s: 13_000.0,
                share: 0.37,
            }),
            time_lost_s: Some(90.0),
            waiting_share: Some(0.031),
            error_ratio: Some(0.03),
            slow: Vec::new(),
            verdict: "Finished: 1.60x as fast.".into(),
            lines: vec!["5000 iterations".into(), "workers waited".into(), "slowest".into()],
        }
    }

    #[test]
    fn a_report_begins_with_verdict_dates_and_figures() {
        let page = page(&summary(), &history(), "evenstep-predictor report job");
        let version = env!("CARGO_PKG_VERSION");
        let dates = "2026-11-28 23:00 to 2026-11-29 00:30 UTC (1.5 h), 2 workers";
        assert_eq!(page.subtitle, format!("{dates}, evenstep {version}"));
        assert_eq!(page.sections[0], Section::Verdict("Finished: 1.60x as fast.".into()));
        let Section::Figures(figures) = &page.sections[2] else { panic!("{:?}", page.sections[2]) };
        let values: Vec<&str> = figures.iter().map(|figure| figure.value.as_str()).collect();
        assert_eq!(values, ["5,000", "1.60x", "3.2 h", "3.1 %", "3.0 %"]);
        // Each chart and table is below a heading.
        let is_heading =
            |section: &Section| matches!(section, Section::Text { heading, .. } if !heading.is_empty());
        let first = page.sections.iter().position(is_heading).unwrap();
        let is_chart = |section: &Section| matches!(section, Section::Charts(_) | Section::Table(_));
        assert!(!page.sections[..first].iter().any(is_chart));
        let html = page.to_html();
        assert!(html.find("<h2").unwrap() < html.find("<h3").unwrap());
    }

    /// All workers have one scale, and each name has the colour of its place among the names.
    #[test]
    fn charts_can_be_compared() {
        let names = |chart: &Chart| -> Vec<String> {
            let name = |mark: &Mark| match mark {
                Mark::Line { name, .. } | Mark::Band { name, .. } => name.clone(),
                other => panic!("{other:?}"),
            };
            chart.marks.iter().map(name).take(2).collect()
        };
        let history = history();
        let workers: Vec<&WorkerHistory> = history.workers.iter().collect();
        let charts = speeds(&history, &workers, "tokens");
        assert_eq!(charts.iter().map(|chart| chart.y.up_to).collect::<Vec<_>>(), [Some(108.0); 2]);
        assert!(charts.iter().all(|chart| chart.y.unit == "tokens/s"));
        for chart in charts.iter().chain([&step_times(&history)]) {
            assert_eq!(names(chart), ["measured", "predicted"]);
        }
        assert_eq!(step_times(&history).y.unit, "s", "the page converts seconds to the unit that suits them");
    }
}

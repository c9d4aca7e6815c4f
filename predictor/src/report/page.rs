//! The page of a job: its summary, and charts of its history.

use evenstep_protocol::{HistoryView, SlowWorker, SummaryView, WorkerHistory};
use evenstep_report::{Axis, Cell, Chart, Figure, Mark, Report, Section, Table};

/// Maximum number of workers in a chart of workers: the slow ones first, then the others by id.
const WORKERS_MAX: usize = 8;

/// Returns the page. `command` is the command line that writes it again.
pub fn page(summary: &SummaryView, history: &HistoryView, command: &str) -> Report {
    let mut sections = vec![
        Section::Text { heading: String::new(), paragraphs: summary.lines.clone() },
        Section::Figures(figures(summary)),
        Section::Charts(vec![step_times(history)]),
    ];
    let shown = shown(summary, history);
    let charts = shown.iter().map(|worker| speeds(history, worker)).chain([batches(history, &shown)]);
    sections.push(Section::Charts(charts.collect()));
    if !summary.slow.is_empty() {
        sections.push(Section::Table(slow(&summary.slow)));
    }
    sections.push(Section::Text { heading: "Command".into(), paragraphs: vec![command.to_owned()] });
    Report { title: format!("Job {}", summary.job_id), subtitle: "written by evenstep".into(), sections }
}

fn figures(summary: &SummaryView) -> Vec<Figure> {
    let mut figures = vec![Figure::new("iterations", summary.iterations.to_string(), "")];
    if let Some(gain) = summary.gain {
        let note = format!("90 % interval {:.2}x to {:.2}x", gain.lower, gain.upper);
        figures.push(Figure::new("gain", format!("{:.2}x", gain.ratio), note));
    }
    if let Some(share) = summary.waiting_share {
        figures.push(Figure::new(
            "time lost waiting",
            format!("{:.1} %", 100.0 * share),
            "for the slowest worker",
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
    let in_ms = |values: &[Option<f64>]| -> Vec<Option<f64>> {
        values.iter().map(|value| value.map(|seconds| 1000.0 * seconds)).collect()
    };
    Chart {
        title: "Step time".into(),
        description: "Measured and predicted time of each step, and the predicted time with even shares."
            .into(),
        x: Axis::new("iteration", ""),
        y: Axis::new("step time", "ms").from_zero(),
        marks: vec![
            line(history, "measured", &in_ms(&history.step_time_s), false),
            line(history, "predicted", &in_ms(&history.predicted_step_time_s), true),
            line(history, "predicted with even shares", &in_ms(&history.even_step_time_s), true),
        ],
    }
}

fn speeds(history: &HistoryView, worker: &WorkerHistory) -> Chart {
    let interval =
        history.iterations.iter().zip(&worker.lower_samples_per_s).zip(&worker.upper_samples_per_s);
    let interval = interval.map(|((iteration, lower), upper)| {
        (*iteration as f64, lower.unwrap_or(f64::NAN), upper.unwrap_or(f64::NAN))
    });
    Chart {
        title: format!("Speed of {}", worker.worker),
        description: "Measured and predicted speed, and the 90 % interval of the prediction.".into(),
        x: Axis::new("iteration", ""),
        y: Axis::new("speed", "samples/s").from_zero(),
        marks: vec![
            Mark::Band { name: "predicted".into(), points: interval.collect() },
            line(history, "predicted", &worker.predicted_samples_per_s, true),
            line(history, "measured", &worker.actual_samples_per_s, false),
        ],
    }
}

fn batches(history: &HistoryView, shown: &[&WorkerHistory]) -> Chart {
    let batch = |worker: &&WorkerHistory| {
        let values = worker.local_batch.iter().map(|batch| batch.map(|batch| batch as f64));
        Mark::Line { name: worker.worker.to_string(), points: points(history, values), dashed: false }
    };
    Chart {
        title: "Local batches".into(),
        description: format!("Number of samples of each worker, at most {WORKERS_MAX} workers."),
        x: Axis::new("iteration", ""),
        y: Axis::new("local batch", "samples").from_zero(),
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
        "Slow workers",
        "Speed over the median speed of the others, in the iterations in which the worker was slow.",
        &["worker", "speed ratio", "iterations (%)", "reason"],
        workers.iter().map(row).collect(),
    )
}

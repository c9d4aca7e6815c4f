//! The HTML page of a report.

use evenstep_report::{Cell, Chart, Figure, Report, Section, Table};

use crate::report::definitions::DEFINITIONS;
use crate::report::forecasts::Forecasts;
use crate::report::results::{Results, RunResult};
use crate::report::run::{Run, Training};
use crate::report::table::notes;
use crate::report::{charts, compared, decisions};
use evenstep_trainer::Policy;

/// Gain from which on evenstep pays.
const PAYS: f64 = 1.02;
/// Maximum number of runs with headline values. With more runs, a page of large numbers is hard to read.
const HEADLINES_MAX: usize = 3;

/// Returns the page.
pub fn report(runs: &[Run], results: &Results) -> Report {
    let notice = |(note, names): (&str, Vec<&str>)| {
        let of = if runs.len() > 1 { format!(" ({})", names.join(", ")) } else { String::new() };
        Section::Notice(format!("{}{of}", sentence(note)))
    };
    let heading = |words: &str| Section::Text { heading: words.into(), paragraphs: Vec::new() };
    let mut sections: Vec<Section> = verdict(runs).map(Section::Verdict).into_iter().collect();
    sections.extend(notes(runs).into_iter().map(notice));
    let mut figures: Vec<Figure> = Vec::new();
    if runs.len() <= HEADLINES_MAX {
        figures.extend(runs.iter().flat_map(headline));
    }
    figures.extend(asking(results));
    figures.extend(losses(runs));
    if !figures.is_empty() {
        sections.push(Section::Figures(figures));
    }
    let compared = if runs.len() > 1 { compared::charts(results) } else { Vec::new() };
    if !compared.is_empty() {
        sections.push(heading("Comparison"));
    }
    sections.extend(compared);
    for run in runs {
        run_sections(run, &mut sections);
    }
    sections.push(heading("All policies and definitions"));
    sections.push(Section::Table(table(results)));
    sections.push(Section::Table(definitions()));
    let mut data: Vec<&str> = runs.iter().map(|run| run.line.data.as_str()).collect();
    data.dedup();
    Report {
        title: "Training with even batches and with evenstep".into(),
        subtitle: format!("evenstep-trainer {}: {}", env!("CARGO_PKG_VERSION"), data.join("; ")),
        sections,
    }
}

/// Returns the gain of the best policy over even shares, for each of a few runs.
fn verdict(runs: &[Run]) -> Option<String> {
    let of = |run: &Run| {
        let best = run.headline()?;
        let gain = run.gain(best, Policy::Even)?;
        let result = if gain >= PAYS { "pays" } else { "does not pay" };
        let scenario = run.line.scenario.words();
        Some(format!("With {scenario}, evenstep {result}: gain {gain:.2}x over even shares."))
    };
    let said: Vec<String> = runs.iter().take(HEADLINES_MAX).filter_map(of).collect();
    (!said.is_empty() && runs.len() <= HEADLINES_MAX).then(|| said.join(" "))
}

/// Returns the headline values of a run; none if the run has no policy to compare with.
fn headline(run: &Run) -> Vec<Figure> {
    let (Some(even), Some(best)) = (run.training(Policy::Even), run.headline()) else {
        return Vec::new();
    };
    let scenario = run.line.scenario.words();
    let (slow, fast) = (&even.figures, &best.figures);
    let mut figures = vec![
        Figure::new(
            format!("Throughput, {scenario}"),
            run.gain(best, Policy::Even).map_or_else(String::new, |gain| format!("{gain:.2}x")),
            format!(
                "{:.0} instead of {:.0} samples/s with even batches; like for like {:.2}×",
                fast.throughput_samples_per_s,
                slow.throughput_samples_per_s,
                fast.share_of_ideal() / slow.share_of_ideal()
            ),
        ),
        Figure::new(
            format!("Of the ideal, {scenario}"),
            percent(fast.share_of_ideal()),
            format!(
                "{} with even batches; the ideal is the sum of the workers' speeds",
                percent(slow.share_of_ideal())
            ),
        ),
    ];
    if let Some(base) = run.training(Policy::Base).filter(|base| base.policy != best.policy) {
        figures.push(Figure::new(
            format!("Waiting, {scenario}"),
            percent(fast.barrier_wait_share),
            format!(
                "of the step; {} with the same forecasts without a shared tail, which reach {} of the ideal",
                percent(base.figures.barrier_wait_share),
                percent(base.figures.share_of_ideal())
            ),
        ));
    }
    figures
}

/// Returns the largest difference in loss between policies, over all runs.
fn losses(runs: &[Run]) -> Option<Figure> {
    let largest = runs.iter().filter_map(loss_difference).reduce(f64::max)?;
    Some(Figure::new(
        "Loss difference",
        relative(largest),
        "largest relative difference between policies in any iteration, from rounding",
    ))
}

/// A relative difference in words.
fn relative(difference: f64) -> String {
    if difference == 0.0 { "0".into() } else { format!("{difference:.0e}") }
}

fn asking(results: &Results) -> Option<Figure> {
    let service = results.allocate_ms.as_ref()?;
    let share = results.runs.iter().map(|result| result.request_share).fold(0.0, f64::max);
    Some(Figure::new(
        "Allocation, time in the service",
        format!("{:.2} ms", service.p50),
        format!("p99 {:.2} ms; requests took {:.2} % of the step time", service.p99, share * 100.0),
    ))
}

fn table(results: &Results) -> Table {
    Table::new(
        "All policies",
        format!(
            "The job, seed and samples are the same under all policies. The first {} iterations of each policy are warm-up \
                         and left out. The definitions below explain the columns.",
            results.warm_up_iterations
        ),
        &[
            "run",
            "scenario",
            "policy",
            "iterations",
            "step",
            "step p50",
            "step p95",
            "waiting (%)",
            "claiming (%)",
            "chunking (%)",
            "chunks",
            "claimed (% of samples)",
            "passes",
            "samples/s",
            "gain",
            "ideal samples/s",
            "of ideal (%)",
            "like for like",
            "over base",
            "requests (% of step)",
            "final loss",
        ],
        results.runs.iter().map(row).collect(),
    )
}

fn row(result: &RunResult) -> Vec<Cell> {
    vec![
        result.record.clone().into(),
        result.scenario.words().into(),
        result.policy.to_string().into(),
        Cell::number(result.iterations as f64, 0),
        Cell::Seconds(result.step_time_s.mean),
        Cell::Seconds(result.step_time_s.p50),
        Cell::Seconds(result.step_time_s.p95),
        Cell::number(result.barrier_wait_share * 100.0, 1),
        Cell::number(result.claim_share * 100.0, 2),
        Cell::number(result.chunk_overhead_share * 100.0, 2),
        Cell::number(result.chunks, 1),
        Cell::number(result.tail_share * 100.0, 1),
        Cell::number(result.passes, 1),
        Cell::number(result.throughput_samples_per_s, 0),
        optional_number(result.gain, 2),
        Cell::number(result.ideal_throughput_samples_per_s, 0),
        Cell::number(result.share_of_ideal * 100.0, 1),
        optional_number(result.gain_like_for_like, 2),
        optional_number(result.over_base.as_ref().map(|over| over.gain_like_for_like), 2),
        Cell::number(result.request_share * 100.0, 2),
        Cell::number(result.final_loss, 4),
    ]
}

fn run_sections(run: &Run, sections: &mut Vec<Section>) {
    let line = &run.line;
    let heading = format!("{}: {}", run.name, line.scenario.words());
    let setting = format!(
        "{} workers, {}, {} per iteration, {} iterations per policy, seed {}. {}",
        line.workers.len(),
        line.model,
        line.samples(),
        line.steps,
        line.seed,
        line.job_id.as_ref().map_or_else(String::new, |job| format!("Job {job}."))
    );
    let mut paragraphs = vec![setting];
    paragraphs.extend(loss_agreement(run));
    sections.push(Section::Text { heading, paragraphs });
    sections.push(Section::Charts(vec![charts::step_time(run)]));
    sections.push(Section::Charts(vec![charts::percentiles(run), charts::waiting(run)]));
    let shown = line.workers.len().min(charts::SPEED_CHARTS_MAX);
    let batches: Vec<Chart> = run.asking().map(|training| charts::batches(run, training)).collect();
    if !batches.is_empty() {
        sections.push(Section::Charts(batches));
    }
    if let Some(training) = run.headline() {
        sections.push(Section::Charts((0..shown).map(|rank| charts::speeds(run, training, rank)).collect()));
    }
    for training in run.asking() {
        sections.push(Section::Table(forecasts(run, training, shown)));
        sections.push(Section::Table(decisions::table(training)));
    }
    sections.push(Section::Charts(vec![charts::loss(run)]));
}

/// Returns the largest relative difference between a loss and the loss of the first training, over all
/// iterations.
fn loss_difference(run: &Run) -> Option<f64> {
    let (first, others) = run.trainings.split_first().filter(|(_, others)| !others.is_empty())?;
    let pairs = others.iter().flat_map(|other| first.iterations.iter().zip(&other.iterations));
    Some(pairs.map(|(first, other)| (other.loss / first.loss - 1.0).abs()).fold(0.0, f64::max))
}

/// Describes how far the losses differ. All trainings use the same samples, so only rounding makes a
/// difference.
fn loss_agreement(run: &Run) -> Option<String> {
    let difference = loss_difference(run)?;
    let ends: Vec<String> = run
        .trainings
        .iter()
        .map(|training| format!("{} {:.6}", training.policy, training.end.final_loss))
        .collect();
    Some(format!(
        "The losses under the policies differ by at most {} of their value. Final loss: {} ({}).",
        relative(difference),
        ends.join(", "),
        run.trainings.first()?.end.evaluation
    ))
}

fn forecasts(run: &Run, training: &Training, charted: usize) -> Table {
    let row = |rank: usize| {
        let Forecasts { mean_batch, mean_speed_samples_per_s, error, last_value_error, coverage } =
            Forecasts::of(training, rank);
        let share = |value: Option<f64>| optional_number(value.map(|value| value * 100.0), 1);
        vec![
            run.line.workers[rank].to_string().into(),
            Cell::number(mean_batch, 1),
            optional_number(mean_speed_samples_per_s, 0),
            share(error),
            share(last_value_error),
            share(coverage),
        ]
    };
    let workers = run.line.workers.len();
    let unseen = if charted < workers {
        format!(" The charts show the first {charted} of {workers} workers.")
    } else {
        String::new()
    };
    Table::new(
        format!("Forecasts under {}", training.policy),
        format!(
            "Errors are mean absolute differences to the measured speed. Last value: the forecast is the speed of the previous \
                         iteration.{unseen}"
        ),
        &[
            "worker",
            "mean batch",
            "mean speed (samples/s)",
            "forecast error (%)",
            "last value error (%)",
            "inside the 90 % interval (%)",
        ],
        (0..workers).map(row).collect(),
    )
}

fn definitions() -> Table {
    Table {
        title: "Definitions".into(),
        description: String::new(),
        columns: vec!["name".into(), "definition".into()],
        rows: DEFINITIONS.iter().map(|(word, meaning)| vec![(*word).into(), (*meaning).into()]).collect(),
    }
}

fn optional_number(value: Option<f64>, decimals: usize) -> Cell {
    value.map_or(Cell::Missing, |value| Cell::number(value, decimals))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Capitalizes the first letter.
fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

//! Results as a page that stands alone.

use evenstep_report::text::seconds;
use evenstep_report::{Cell, Figure, Report, Section, Table};

use super::charts;
use super::results::Results;
use crate::simulate::Summary;
use crate::simulate::{Run, World};

const DEFINITIONS: &str = "Speed-up: the mean step of an even split over this one's; regret: the mean step over the oracle's, less \
1; the oracle knows what each worker will do; wait: time that a worker waits in a step for the slowest, on average; changes: iterations \
in which any share, before any claim, changed; claims: time that a worker spends on claims in a step, on average; chunks of the \
shared tail in a step. Workers do not react to what is done: a worker is as contended as it was recorded, whatever its share.";

/// The whole page. `asked` is the command line in words.
pub fn report(results: &Results, runs: &[Run], world: &World, asked: &str) -> Report {
    let mut paragraphs = vec![asked.to_owned()];
    paragraphs.extend(results.advice.iter().map(|advice| advice.text.clone()));
    paragraphs.push(DEFINITIONS.into());
    let mut sections = vec![
        Section::Text { heading: "Is it worth it?".into(), paragraphs },
        Section::Figures(headline(results)),
        Section::Table(table(results)),
        Section::Charts(vec![charts::step_times(results), charts::waits(results)]),
    ];
    // Each takes the whole width: a run is long.
    let long = [
        charts::behind(results, runs),
        Some(charts::cumulative(results, runs)),
        charts::shares(results, runs, world),
    ];
    sections.extend(long.into_iter().flatten().map(|chart| Section::Charts(vec![chart])));
    Report {
        title: "Simulation".into(),
        subtitle: format!(
            "evenstep-predictor {}: {} workers, {} samples an iteration; {} of {} iterations count; seed {}",
            env!("CARGO_PKG_VERSION"),
            results.workers,
            results.global_batch,
            results.iterations - results.warmup,
            results.iterations,
            results.seed
        ),
        sections,
    }
}

fn headline(results: &Results) -> Vec<Figure> {
    let Some(advice) = &results.advice else { return Vec::new() };
    let figure = |label: &str, time_s: f64, note: String| Figure::new(label, seconds(time_s), note);
    let saved =
        |time_s: f64| format!("{:+.1} % of a step left alone", 100.0 * (time_s / advice.even_s - 1.0));
    let mut figures = vec![
        figure("With evenstep", advice.evenstep_s, saved(advice.evenstep_s)),
        figure("Left alone", advice.even_s, "an even split".into()),
    ];
    if let Some((slowest, without_s)) = advice.slowest.as_ref().zip(advice.without_slowest_s) {
        figures.push(figure(&format!("Without {slowest}"), without_s, saved(without_s)));
    }
    figures
}

fn table(results: &Results) -> Table {
    let row = |policy: &Summary| {
        vec![
            policy.policy.as_str().into(),
            Cell::Seconds(policy.mean_step_time_s),
            Cell::Seconds(policy.p95_step_time_s),
            Cell::number(policy.speedup, 3),
            Cell::number(policy.regret, 4),
            Cell::Seconds(policy.barrier_wait_s),
            Cell::number(policy.changes as f64, 0),
            Cell::Seconds(policy.claim_s),
            Cell::number(policy.chunks, 1),
        ]
    };
    let columns = ["policy", "mean step", "p95", "speed-up", "regret", "wait", "changes", "claims", "chunks"];
    let rows = results.policies.iter().map(row).collect();
    Table::new("Policies", "Over the iterations that count.", &columns, rows)
}

//! Results as a self-contained HTML report.

use evenstep_report::text::seconds;
use evenstep_report::{Cell, Figure, Report, Section, Table};

use super::charts;
use super::results::Results;
use super::text::half_fixed;
use crate::simulate::{PolicyName, Run, Summary, Way, World};

const DEFINITIONS: &str = "Gain: mean step of the even split divided by the policy's. Regret: mean step divided by \
    the oracle's, minus 1. The oracle knows the actual speeds. Wait: mean time per step that a worker \
    waits for the slowest. Changes: iterations in which any share changed, before claims. Claims: mean \
    time per step that a worker spends on claims. Chunks: mean number of chunks of the shared tail per \
    step. Workers do not react to the policy: contention is as recorded, whatever the share.";

/// Returns the whole page. `asked` is the command line.
pub fn report(results: &Results, runs: &[Run], world: &World, asked: &str) -> Report {
    let heading = |words: &str| Section::Text { heading: words.into(), paragraphs: Vec::new() };
    let verdict = results.advice.iter().map(|advice| Section::Verdict(format!("{}.", advice.text)));
    let mut sections: Vec<Section> = verdict.collect();
    let half_fixed = results.advice.iter().filter_map(half_fixed);
    sections.extend(
        half_fixed.chain(results.notes.iter().cloned()).map(|note| Section::Notice(format!("{note}."))),
    );
    sections.extend([
        Section::Figures(headline(results)),
        heading("Policies"),
        Section::Charts(vec![charts::step_times(results), charts::waits(results)]),
        Section::Table(table(results)),
        heading("Over the run"),
    ]);
    // Each chart takes the whole width, because a run is long.
    let long = [
        charts::time_lost(results, runs),
        Some(charts::cumulative(results, runs)),
        charts::shares(results, runs, world),
    ];
    sections.extend(long.into_iter().flatten().map(|chart| Section::Charts(vec![chart])));
    let paragraphs = vec![asked.to_owned(), DEFINITIONS.into()];
    sections.push(Section::Text { heading: "Command and definitions".into(), paragraphs });
    Report {
        title: "Simulation".into(),
        subtitle: format!(
            "evenstep-predictor {}: {} workers, {} samples per iteration; {} of {} iterations count; seed {}",
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
    let figure = |way: &Way| {
        let name = way.to_string();
        let label = name.chars().take(1).flat_map(char::to_uppercase).chain(name.chars().skip(1));
        let gain = way.gain.filter(|_| way.policy != PolicyName::Even);
        let note = gain.map_or_else(String::new, |gain| format!("{gain} over the even split"));
        Figure::new(label.collect::<String>(), seconds(way.mean_step_time_s), note)
    };
    results.advice.iter().flat_map(|verdict| &verdict.ways).map(figure).collect()
}

fn table(results: &Results) -> Table {
    let row = |policy: &Summary| {
        vec![
            policy.policy.as_str().into(),
            Cell::Seconds(policy.mean_step_time_s),
            Cell::Seconds(policy.p95_step_time_s),
            format!("{:.2}x", policy.gain).as_str().into(),
            Cell::number(policy.regret, 3),
            Cell::Seconds(policy.barrier_wait_s),
            Cell::number(policy.changes as f64, 0),
            Cell::Seconds(policy.claim_s),
            Cell::number(policy.chunks, 1),
        ]
    };
    let columns = ["policy", "mean step", "p95", "gain", "regret", "wait", "changes", "claims", "chunks"];
    let rows = results.policies.iter().map(row).collect();
    Table::new("All policies", "Iterations after the warm-up.", &columns, rows)
}

//! Charts that compare several runs.

use evenstep_report::{Axis, Bar, Chart, Mark, RuleAt, Section};

use crate::record::Scenario;
use crate::report::results::{Results, RunResult};
use evenstep_trainer::Policy;

/// Returns charts with one bar per run and policy. Runs with the same scenario and number of workers share
/// charts.
pub fn charts(results: &Results) -> Vec<Section> {
    let group = |result: &RunResult| (result.scenario, result.workers);
    let mut groups: Vec<(Scenario, usize)> = Vec::new();
    for result in &results.runs {
        if !groups.contains(&group(result)) {
            groups.push(group(result));
        }
    }
    let alike = |wanted: (Scenario, usize)| results.runs.iter().filter(move |result| group(result) == wanted);
    groups.into_iter().flat_map(|wanted| compare(wanted, &alike(wanted).collect::<Vec<_>>())).collect()
}

fn compare((scenario, workers): (Scenario, usize), results: &[&RunResult]) -> Vec<Section> {
    if results.iter().all(|result| result.record == results[0].record) {
        return Vec::new();
    }
    let of = format!("{}, {workers} workers", scenario.words());
    let mut step = chart(
        results,
        format!("Step time relative to the ideal: {of}"),
        "Mean step time divided by the step time if no worker ever waited, at the measured speeds. Lower is better; the \
                 minimum is 1.",
        ("step time", "times the ideal"),
        |result| 1.0 / result.share_of_ideal,
    );
    step.marks.push(Mark::Rule { name: "ideal".into(), at: RuleAt::Y(1.0) });
    let waiting = chart(
        results,
        format!("Waiting at the barrier: {of}"),
        "Share of all workers' time spent waiting for the slowest worker.",
        ("waiting", "% of step time"),
        |result| result.barrier_wait_share * 100.0,
    );
    let claiming = chart(
        results,
        format!("Waiting for claims: {of}"),
        "Share of all workers' time spent waiting for responses to claims.",
        ("claiming", "% of step time"),
        |result| result.claim_share * 100.0,
    );
    vec![Section::Charts(vec![step]), Section::Charts(vec![waiting, claiming])]
}

fn chart(
    results: &[&RunResult],
    title: String,
    description: &str,
    (label, unit): (&str, &str),
    value: impl Fn(&RunResult) -> f64,
) -> Chart {
    let mut policies: Vec<Policy> = results.iter().map(|result| result.policy).collect();
    policies.sort();
    policies.dedup();
    let bars = |policy: Policy| Mark::Bars {
        name: policy.to_string(),
        bars: results
            .iter()
            .filter(|result| result.policy == policy)
            .map(|result| Bar { category: result.record.clone(), value: value(result) })
            .collect(),
    };
    Chart {
        title,
        description: description.into(),
        x: Axis::new("run", ""),
        y: Axis::new(label, unit),
        marks: policies.into_iter().map(bars).collect(),
    }
}

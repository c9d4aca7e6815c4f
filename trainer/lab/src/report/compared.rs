//! Several runs side by side.

use evenstep_report::{Axis, Bar, Chart, Mark, RuleAt, Section};

use crate::record::Scenario;
use crate::report::page::words;
use crate::report::results::{Results, RunResult};
use evenstep_trainer::Policy;

/// Charts with a bar for each run and policy; runs of one scenario with as many workers share them.
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
    let of = format!("{}, {workers} workers", words(scenario));
    let mut step = chart(
        results,
        format!("Step time over the ideal: {of}"),
        "Mean step time over what it would be if every worker were busy to its end, at the speeds that were measured. Less is \
         better, 1 cannot be beaten.",
        ("step time", "times the ideal"),
        |result| 1.0 / result.share_of_ideal,
    );
    step.marks.push(Mark::Rule { name: "ideal".into(), at: RuleAt::Y(1.0) });
    let waiting = chart(
        results,
        format!("Waiting at the barrier: {of}"),
        "The part of all workers' time in which they waited for the last one.",
        ("waiting", "% of step time"),
        |result| result.barrier_wait_share * 100.0,
    );
    let claiming = chart(
        results,
        format!("Waiting for claims: {of}"),
        "The part of all workers' time in which they waited for the answers to their claims.",
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

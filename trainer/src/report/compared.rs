//! Several runs side by side.

use evenstep_report::{Axis, Bar, Chart, Mark, RuleAt, Section};

use crate::cli::Policy;
use crate::report::results::{Results, RunResult};

/// Charts with a bar for each run and policy.
pub fn charts(results: &Results) -> Vec<Section> {
    let mut step = chart(
        results,
        "Step time over the ideal",
        "Mean step time over what it would be if every worker were busy to its end, at the speeds that were measured. Less is \
         better, 1 cannot be beaten.",
        ("step time", "times the ideal"),
        |result| 1.0 / result.share_of_ideal,
    );
    step.marks.push(Mark::Rule { name: "ideal".into(), at: RuleAt::Y(1.0) });
    let waiting = chart(
        results,
        "Waiting at the barrier",
        "The part of all workers' time in which they waited for the last one.",
        ("waiting", "% of step time"),
        |result| result.barrier_wait_share * 100.0,
    );
    let claiming = chart(
        results,
        "Waiting for claims",
        "The part of all workers' time in which they waited for the answers to their claims.",
        ("claiming", "% of step time"),
        |result| result.claim_share * 100.0,
    );
    vec![Section::Charts(vec![step]), Section::Charts(vec![waiting, claiming])]
}

fn chart(
    results: &Results,
    title: &str,
    description: &str,
    (label, unit): (&str, &str),
    value: impl Fn(&RunResult) -> f64,
) -> Chart {
    let mut policies: Vec<Policy> = results.runs.iter().map(|result| result.policy).collect();
    policies.sort();
    policies.dedup();
    let bars = |policy: Policy| Mark::Bars {
        name: policy.to_string(),
        bars: results
            .runs
            .iter()
            .filter(|result| result.policy == policy)
            .map(|result| Bar { category: result.record.clone(), value: value(result) })
            .collect(),
    };
    Chart {
        title: title.into(),
        description: description.into(),
        x: Axis::new("run", ""),
        y: Axis::new(label, unit),
        marks: policies.into_iter().map(bars).collect(),
    }
}

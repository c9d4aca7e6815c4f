//! Results as text.

use evenstep_report::text::{aligned, line, number, seconds};

use super::results::Results;
use crate::simulate::{Advice, PolicyName, Summary, Verdict};

/// Returns the whole text.
pub fn table(results: &Results) -> String {
    let mut text = String::new();
    let counted = results.iterations - results.warmup;
    line(
        &mut text,
        format_args!(
            "{} workers, {} samples per iteration; {counted} of {} iterations count",
            results.workers, results.global_batch, results.iterations
        ),
    );
    let header = ["policy", "mean s", "p95 s", "gain", "regret", "wait s", "changes", "claims s", "chunks"];
    let row = |policy: &Summary| {
        let numbers = [policy.mean_step_time_s, policy.p95_step_time_s, policy.regret, policy.barrier_wait_s];
        let numbers = numbers.map(|value| number(Some(value)));
        let gain = format!("{:.2}x", policy.gain);
        let [mean_s, p95_s, regret, wait_s] = numbers;
        std::iter::once(policy.policy.to_string())
            .chain([mean_s, p95_s, gain, regret, wait_s])
            .chain([policy.changes.to_string(), number(Some(policy.claim_s)), number(Some(policy.chunks))])
            .collect()
    };
    let rows: Vec<Vec<String>> =
        std::iter::once(header.map(str::to_owned).to_vec()).chain(results.policies.iter().map(row)).collect();
    aligned(&mut text, &rows);
    if results.advice.is_some() && !results.networks {
        line(
            &mut text,
            format_args!("(evenstep ran without its networks; --networks yes fits them and takes longer)"),
        );
    }
    for note in &results.notes {
        line(&mut text, format_args!("({note})"));
    }
    if let Some(verdict) = &results.advice {
        for way in &verdict.ways {
            let gain = way.gain.filter(|_| way.policy != PolicyName::Even);
            let gain = gain.map_or_else(String::new, |gain| format!(", {gain}"));
            line(&mut text, format_args!("{way}: mean step {}{gain}", seconds(way.mean_step_time_s)));
        }
        if let Some(half_fixed) = half_fixed(verdict) {
            line(&mut text, format_args!("{half_fixed}"));
        }
        line(&mut text, format_args!("{}", verdict.text));
    }
    text
}

/// The sentence about times that depend on the batch only by half. A history with one batch size cannot show that.
pub fn half_fixed(verdict: &Verdict) -> Option<String> {
    let is_ours = matches!(verdict.best, Advice::UseEvenstep | Advice::UseHedgedSteps);
    let most = verdict.most_if_half_fixed.filter(|_| is_ours)?;
    let words = "If half of the time of an even share did not depend on the batch, the gain with evenstep would be at most";
    Some(format!("{words} {most:.2}x"))
}

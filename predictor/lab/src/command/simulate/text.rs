//! Results as text.

use evenstep_report::text::{aligned, line, number};

use super::results::Results;
use crate::simulate::Summary;

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
    let header =
        ["policy", "mean s", "p95 s", "speed-up", "regret", "wait s", "changes", "claims s", "chunks"];
    let row = |policy: &Summary| {
        let numbers = [
            policy.mean_step_time_s,
            policy.p95_step_time_s,
            policy.speedup,
            policy.regret,
            policy.barrier_wait_s,
        ];
        let numbers = numbers.map(|value| number(Some(value)));
        std::iter::once(policy.policy.to_string())
            .chain(numbers)
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
    if let Some(advice) = &results.advice {
        line(&mut text, format_args!("{}", advice.text));
    }
    text
}

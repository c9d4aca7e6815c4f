//! Results as text.

use crate::simulate::{Advice, Verdict};

use super::results::{PolicyResult, Results};
use evenstep_report::text::{aligned, line, number};

/// The whole text.
pub fn table(results: &Results) -> String {
    let mut text = String::new();
    let counted = results.iterations - results.warmup;
    line(
        &mut text,
        format_args!(
            "{} workers, {} samples an iteration; {counted} of {} iterations count",
            results.workers, results.global_batch, results.iterations
        ),
    );
    let header =
        ["policy", "mean s", "p95 s", "speed-up", "regret", "wait s", "changes", "claims s", "chunks"];
    let row = |policy: &PolicyResult| {
        let numbers = [
            policy.mean_step_time_s,
            policy.p95_step_time_s,
            policy.speedup,
            policy.regret,
            policy.barrier_wait_s,
        ];
        let numbers = numbers.map(|value| number(Some(value)));
        std::iter::once(policy.policy.to_owned())
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
            format_args!("(evenstep without its networks; --networks yes takes longer and fits them)"),
        );
    }
    if let Some(advice) = &results.advice {
        line(&mut text, format_args!("{}", advice.text));
    }
    text
}

/// Is it worth it? In a line.
pub fn advice(verdict: &Verdict) -> String {
    let saves = |seconds: f64| 100.0 * (1.0 - seconds / verdict.even_s);
    let ours = saves(verdict.evenstep_s);
    let head = match (verdict.advice, &verdict.without_slowest) {
        (Advice::UseEvenstep, _) => format!("Worth it: evenstep saves {ours:.1} % of the step"),
        (Advice::DropSlowest, Some((worker, seconds))) => {
            format!("Drop {worker}: that saves {:.1} % of the step", saves(*seconds))
        }
        _ if ours > 0.0 => format!("Leave it alone: evenstep would save {ours:.1} % of the step"),
        _ => format!("Leave it alone: evenstep would add {:.1} % to the step", -ours),
    };
    let seconds = |seconds: f64| number(Some(seconds));
    let mut text = format!(
        "{head} (mean step {} s with evenstep, {} s left alone",
        seconds(verdict.evenstep_s),
        seconds(verdict.even_s)
    );
    if let Some((worker, without_s)) = &verdict.without_slowest {
        text.push_str(&format!(", {} s without {worker}", seconds(*without_s)));
    }
    text + ")"
}

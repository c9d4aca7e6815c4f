//! The decisions of the predictor and their reasons.

use evenstep_protocol::{Decision, DecisionKind};
use evenstep_report::{Cell, Table};

use crate::report::run::Training;
use evenstep_trainer::progress::IterationLine;

/// Maximum number of decisions in the table.
const SHOWN_MAX: usize = 10;

/// Returns a table of the decisions that moved the most samples, in order of time.
pub fn table(training: &Training) -> Table {
    let decided: Vec<(&IterationLine, &Decision)> =
        training.iterations.iter().filter_map(|line| Some((line, line.decision.as_ref()?))).collect();
    let count = |kind: DecisionKind| decided.iter().filter(|(_, decision)| decision.kind == kind).count();
    let description = format!(
        "The predictor allocated {} iterations: {} rebalanced, {} held the shares because a change would have gained too \
                 little, {} had unmeasured workers. The other {} iterations used the last allocation. The table shows the \
                 decisions that moved the most samples.",
        decided.len(),
        count(DecisionKind::Rebalanced),
        count(DecisionKind::Held),
        count(DecisionKind::ColdStart),
        training.iterations.len() - decided.len(),
    );
    let mut moves: Vec<(u64, &IterationLine, &Decision)> = training
        .iterations
        .windows(2)
        .filter_map(|pair| Some((moved(&pair[0], &pair[1]), &pair[1], pair[1].decision.as_ref()?)))
        .filter(|(moved, ..)| *moved > 0)
        .collect();
    moves.sort_by_key(|(moved, line, _)| (std::cmp::Reverse(*moved), line.iteration));
    moves.truncate(SHOWN_MAX);
    moves.sort_by_key(|(_, line, _)| line.iteration);
    Table {
        title: format!("Decisions under {}", training.policy),
        description,
        columns: [
            "iteration",
            "moved (samples)",
            "batches",
            "reason",
            "predicted (ms)",
            "measured (ms)",
            "even split, predicted (ms)",
        ]
        .map(String::from)
        .to_vec(),
        rows: moves.iter().map(|(moved, line, decision)| row(*moved, line, decision)).collect(),
    }
}

fn row(moved: u64, line: &IterationLine, decision: &Decision) -> Vec<Cell> {
    let batches: Vec<String> = line.workers.iter().map(|worker| worker.local_batch.to_string()).collect();
    let slowest_s = line.workers.iter().map(|worker| worker.compute_time_s).fold(0.0, f64::max);
    let ms = |time_s: Option<f64>| time_s.map_or(Cell::Missing, |time_s| Cell::number(time_s * 1e3, 1));
    vec![
        Cell::number(line.iteration as f64, 0),
        Cell::number(moved as f64, 0),
        batches.join(" / ").into(),
        decision.reason.clone().into(),
        ms(decision.predicted_step_time_s),
        ms(Some(slowest_s)),
        ms(decision.even_step_time_s),
    ]
}

/// Returns the number of samples that moved between workers from one iteration to the next; 0 if the global
/// batch changed.
fn moved(before: &IterationLine, after: &IterationLine) -> u64 {
    if before.global_batch != after.global_batch {
        return 0;
    }
    let pairs = before.workers.iter().zip(&after.workers);
    pairs.map(|(before, after)| after.local_batch.saturating_sub(before.local_batch)).sum()
}

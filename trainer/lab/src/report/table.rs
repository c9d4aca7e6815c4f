//! The results as text for a terminal.

use std::fmt::{self, Write};

use crate::report::definitions::DEFINITIONS;
use crate::report::results::{Results, RunResult};
use crate::report::run::Run;

const COUNT: usize = 15;
const COLUMNS: [&str; COUNT] = [
    "run",
    "policy",
    "step",
    "p50",
    "p95",
    "waiting",
    "claiming",
    "chunking",
    "chunks",
    "samples/s",
    "gain",
    "of ideal",
    "like for like",
    "over base",
    "final loss",
];
/// Number of left-aligned text columns.
const WORDS: usize = 2;
/// Width of the column of names in the list of definitions.
const WORD_WIDTH: usize = 15;
/// Maximum line width of the definitions.
const WIDTH: usize = 110;

/// Returns the table, service times, notes and definitions as text.
pub fn text(runs: &[Run], results: &Results) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_all(&mut text, runs, results);
    text
}

fn write_all(out: &mut String, runs: &[Run], results: &Results) -> fmt::Result {
    let rows: Vec<[String; COUNT]> = results.runs.iter().map(row).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).max(COLUMNS[column].len())
    };
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    write_row(out, &COLUMNS.map(str::to_owned), &widths)?;
    writeln!(out, "{}", "-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1)))?;
    for row in &rows {
        write_row(out, row, &widths)?;
    }
    writeln!(out)?;
    writeln!(out, "{}", service(results))?;
    for (note, names) in notes(runs) {
        writeln!(out, "NOTE: {note} ({})", names.join(", "))?;
    }
    for result in results.runs.iter().filter(|result| result.reports_lost > 0) {
        writeln!(
            out,
            "NOTE: {} reports of {} ({}) did not reach the predictor",
            result.reports_lost, result.record, result.policy
        )?;
    }
    writeln!(out)?;
    for (word, meaning) in DEFINITIONS {
        for (number, line) in wrap(meaning, WIDTH - WORD_WIDTH).iter().enumerate() {
            writeln!(out, "{:WORD_WIDTH$}{line}", if number == 0 { word } else { "" })?;
        }
    }
    Ok(())
}

/// Returns the notes of all runs without duplicates, each with the names of its runs.
pub fn notes(runs: &[Run]) -> Vec<(&str, Vec<&str>)> {
    let mut notes: Vec<(&str, Vec<&str>)> = Vec::new();
    for run in runs {
        for note in &run.line.notes {
            match notes.iter_mut().find(|(told, _)| told == note) {
                Some((_, names)) => names.push(&run.name),
                None => notes.push((note, vec![&run.name])),
            }
        }
    }
    notes
}

fn row(result: &RunResult) -> [String; COUNT] {
    [
        result.record.clone(),
        result.policy.to_string(),
        format!("{:.1} ms", result.step_time_s.mean * 1e3),
        format!("{:.1} ms", result.step_time_s.p50 * 1e3),
        format!("{:.1} ms", result.step_time_s.p95 * 1e3),
        format!("{:.1} %", result.barrier_wait_share * 100.0),
        format!("{:.2} %", result.claim_share * 100.0),
        format!("{:.2} %", result.chunk_overhead_share * 100.0),
        format!("{:.1}", result.chunks),
        format!("{:.0}", result.throughput_samples_per_s),
        gain(result.gain),
        format!("{:.1} %", result.share_of_ideal * 100.0),
        gain(result.gain_like_for_like),
        gain(result.over_base.as_ref().map(|over| over.gain_like_for_like)),
        format!("{:.4}", result.final_loss),
    ]
}

fn gain(gain: Option<f64>) -> String {
    gain.map_or_else(|| "-".to_owned(), |gain| format!("{gain:.2}x"))
}

fn write_row(out: &mut String, row: &[String; COUNT], widths: &[usize]) -> fmt::Result {
    for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
        let gap = if column == 0 { "" } else { "  " };
        if column < WORDS { write!(out, "{gap}{cell:<width$}")? } else { write!(out, "{gap}{cell:>width$}")? }
    }
    writeln!(out)
}

/// Describes the time of allocation requests.
pub fn service(results: &Results) -> String {
    let Some(service) = &results.allocate_ms else {
        return "/allocate: the predictor allocated no iteration after the warm-up".to_owned();
    };
    let round_trip = results.round_trip_ms.as_ref().map_or_else(String::new, |trip| {
        format!("; round trip p50 {:.3} ms, p99 {:.3} ms", trip.p50, trip.p99)
    });
    format!(
        "/allocate: in the service p50 {:.3} ms, p99 {:.3} ms{round_trip} ({} responses)",
        service.p50, service.p99, service.count
    )
}

/// Wraps text into lines of at most `width`, except for longer single words.
fn wrap(words: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_lose_none() {
        assert_eq!(wrap("a bb  ccc dddd", 4), ["a bb", "ccc", "dddd"]);
        assert_eq!(wrap("longer", 3), ["longer"]);
        assert!(wrap("", 3).is_empty());
    }
}

//! Recorded traces of workers.
//!
//! - [`table`]: tables in files
//! - [`time`]: the time of each row
//! - [`columns`]: roles of columns and the resulting series
//! - [`align`]: rows of several workers that are of the same iteration
//! - [`stored`]: the reports of a job in a store

pub mod table;

pub mod time;

pub mod columns;

pub mod align;

pub mod stored;

use std::path::{Path, PathBuf};

use columns::{ColumnRoles, Trace};
use table::Table;

/// Reads tables and splits them into series.
///
/// # Errors
/// If a table cannot be read, is invalid or has no rows.
pub fn read_all(paths: &[PathBuf], choice: &ColumnRoles) -> anyhow::Result<Vec<Trace>> {
    let read = |path: &PathBuf| Ok(choice.apply(&Table::read(path)?)?);
    let traces: Vec<Trace> = paths.iter().map(read).collect::<anyhow::Result<_>>()?;
    for trace in &traces {
        anyhow::ensure!(!trace.series.is_empty(), "{}: the table has no rows", trace.trace);
    }
    Ok(traces)
}

/// Aligns the workers of each job. Each table with several workers is a job; otherwise all tables together are one.
///
/// # Errors
/// If times do not align workers; see [`align`](align::align).
pub fn align_jobs(traces: &mut [Trace]) -> anyhow::Result<()> {
    if traces.iter().any(|trace| trace.series.len() > 1) {
        return traces.iter_mut().try_for_each(|trace| align::align(&mut [trace]));
    }
    align::align(&mut traces.iter_mut().collect::<Vec<_>>())
}

/// Names the series of single-series tables by the file stem, or by the whole path if stems are not unique.
pub fn name_series(traces: &mut [Trace]) {
    let stem = |trace: &str| {
        let stem = Path::new(trace).file_stem();
        stem.map_or_else(|| trace.to_owned(), |stem| stem.to_string_lossy().into_owned())
    };
    let stems: Vec<String> = traces.iter().map(|trace| stem(&trace.trace)).collect();
    for (at, trace) in traces.iter_mut().enumerate() {
        let unique = stems.iter().filter(|stem| **stem == stems[at]).count() == 1;
        for series in trace.series.iter_mut().filter(|series| series.id.is_empty()) {
            series.id = if unique { stems[at].clone() } else { trace.trace.clone() };
        }
    }
}

//! The time of each row: its iteration, seconds, or a date with a time of day.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::table::{Table, TableError};

/// Whole numbers from this one on are times: seconds since 1970 or shorter units.
const ITERATIONS_END: f64 = 1e9;

/// Name of the column of times in the traces that evenstep writes, in seconds.
pub const SECONDS: &str = "t_start";

/// Quantity that orders the rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimeKind {
    /// Their number among the rows of their series.
    #[default]
    Row,
    /// The iteration, a whole number from 0 and below 1e9.
    Iteration,
    /// A number of seconds, or of another unit.
    Number,
    /// A local date and time of day.
    Local,
    /// A date and time of day with its offset from UTC.
    Utc,
}

impl fmt::Display for TimeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Row => "row numbers",
            Self::Iteration => "iterations",
            Self::Number => "times in numbers",
            Self::Local => "local times",
            Self::Utc => "times with an offset from UTC",
        })
    }
}

/// Reads a column of times: one value for each row of the table. Dates are in seconds.
///
/// # Errors
/// [`TableError::Cell`] for a cell that is not a time, or of another kind than the cell in the first row.
pub fn read(table: &Table, column: usize) -> Result<(TimeKind, Vec<f64>), TableError> {
    let mut kinds = TimeKind::Iteration;
    let mut times = Vec::with_capacity(table.len());
    for row in 0..table.len() {
        let (kind, time) = cell(table, row, column)?;
        let is_number = |kind: TimeKind| matches!(kind, TimeKind::Iteration | TimeKind::Number);
        // evenstep's own column of seconds.
        let kind = if kind == TimeKind::Iteration && table.columns[column] == SECONDS {
            TimeKind::Number
        } else {
            kind
        };
        if row == 0 || (kind == TimeKind::Number && is_number(kinds)) {
            kinds = kind;
        } else if kind != kinds && !(is_number(kind) && is_number(kinds)) {
            return Err(table.cell_error(
                row,
                column,
                &format!("is not of the kind in the first row: {kinds}"),
            ));
        }
        times.push(time);
    }
    Ok((kinds, times))
}

fn cell(table: &Table, row: usize, column: usize) -> Result<(TimeKind, f64), TableError> {
    let text = table.text(row, column);
    let not_a_number = match table.measured(row, column) {
        Ok(time) => {
            let is_iteration = time.fract() == 0.0 && (0.0..ITERATIONS_END).contains(&time);
            return Ok((if is_iteration { TimeKind::Iteration } else { TimeKind::Number }, time));
        }
        Err(error) => error,
    };
    let seconds = |time: Timestamp| time.as_second() as f64 + f64::from(time.subsec_nanosecond()) / 1e9;
    // The name of a time zone would need the zone's rules.
    let date = Some(text).filter(|text| !text.contains('['));
    if let Some(time) = date.and_then(|text| Timestamp::from_str(text).ok()) {
        return Ok((TimeKind::Utc, seconds(time)));
    }
    let local = date
        .and_then(|text| DateTime::from_str(text).ok())
        .and_then(|time| time.to_zoned(TimeZone::UTC).ok());
    if let Some(time) = local {
        return Ok((TimeKind::Local, seconds(time.timestamp())));
    }
    if text.contains(':') {
        let rule = "is not a date and time of the form 2026-03-29T01:59:30.5+01:00, or without an offset";
        return Err(table.cell_error(row, column, rule));
    }
    Err(not_a_number)
}

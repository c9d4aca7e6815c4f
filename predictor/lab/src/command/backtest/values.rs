//! Parsers of flag values.

/// A range of rows. A missing bound means the start or end of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// First row, if given.
    pub start: Option<usize>,
    /// End, exclusive, if given.
    pub end: Option<usize>,
}

/// Parses `A..B`.
pub fn rows(written: &str) -> Result<Rows, String> {
    let rule = || "must be A..B: first row, and end (exclusive)".to_owned();
    let (start, end) = written.split_once("..").ok_or_else(rule)?;
    let bound =
        |text: &str| if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| rule()) };
    let rows = Rows { start: bound(start)?, end: bound(end)? };
    match rows.end {
        Some(end) if end <= rows.start.unwrap_or(0) => {
            Err("the range is empty; the end must be greater than the start".into())
        }
        _ => Ok(rows),
    }
}

/// Maximum number of lags of the target and of each driver.
pub const LAGS_MAX: u64 = 200;

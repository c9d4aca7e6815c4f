//! Values of flags, and their bounds.

use crate::batch::{CANDIDATES_MAX, Terms};

/// A range of rows, whose end may be that of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// The first row, where it is said.
    pub start: Option<usize>,
    /// The row after the last, where it is said.
    pub end: Option<usize>,
}

/// Parses `A..B`.
pub fn rows(written: &str) -> Result<Rows, String> {
    let rule = || "must be A..B: the first row, and the one after the last".to_owned();
    let (start, end) = written.split_once("..").ok_or_else(rule)?;
    let bound =
        |text: &str| if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| rule()) };
    let rows = Rows { start: bound(start)?, end: bound(end)? };
    match rows.end {
        Some(end) if end <= rows.start.unwrap_or(0) => {
            Err("the range is empty: its end must lie after its start".into())
        }
        _ => Ok(rows),
    }
}

/// The most lags, of the target and of each driver.
pub const LAGS_MAX: u64 = 200;
/// Ridge of a polynomial of all terms, scaled to within -1 and 1: keeps what cannot be told apart from growing.
const TERMS_RIDGE: f64 = 1e-9;

/// Which terms of a polynomial are kept.
pub fn terms(written: &str) -> Result<Terms, String> {
    let picked =
        || written.parse().ok().filter(|count| (1..=CANDIDATES_MAX).contains(count)).map(Terms::Count);
    match written {
        "auto" => Ok(Terms::Automatic),
        "all" => Ok(Terms::All { ridge: TERMS_RIDGE }),
        _ => picked().ok_or_else(|| format!("must be auto, all or a count from 1 to {CANDIDATES_MAX}")),
    }
}

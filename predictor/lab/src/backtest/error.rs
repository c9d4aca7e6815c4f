//! Why a backtest cannot be run.

/// Why a backtest cannot be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BacktestError {
    /// The warm-up or what follows it is too short.
    #[error(
        "{id}: {rows} rows, of which {warmup} are warm-up: at least {warmup_min} rows of warm-up and {test_min} after it are needed"
    )]
    TooFewRows {
        /// The series.
        id: String,
        /// Its rows.
        rows: usize,
        /// How many of them are warm-up.
        warmup: usize,
        /// How many the warm-up needs.
        warmup_min: usize,
        /// How many must follow it.
        test_min: usize,
    },
    /// A range of rows passes the end.
    #[error("{id}: the {which} range {start}..{end} ends past the {rows} rows there are")]
    PastEnd {
        /// The series.
        id: String,
        /// Which range.
        which: &'static str,
        /// Its first row.
        start: usize,
        /// The row after its last.
        end: usize,
        /// Rows of the series.
        rows: usize,
    },
    /// A range is too short for the lags.
    #[error("{id}: the {which} range {start}..{end} is too short: {rule}")]
    TooShort {
        /// The series.
        id: String,
        /// Which range.
        which: &'static str,
        /// Its first row.
        start: usize,
        /// The row after its last.
        end: usize,
        /// What it needs.
        rule: String,
    },
}

//! Errors of a backtest.

/// Reasons why a backtest cannot run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BacktestError {
    /// The warm-up, or the range after it, is too short.
    #[error(
        "{id}: {rows} rows, of which {warmup} are warm-up; the warm-up needs at least {warmup_min} rows, \
            and at least {test_min} must follow it"
    )]
    TooFewRows {
        /// Id of the series.
        id: String,
        /// Number of rows.
        rows: usize,
        /// Number of warm-up rows.
        warmup: usize,
        /// Minimum number of warm-up rows.
        warmup_min: usize,
        /// Minimum number of rows after the warm-up.
        test_min: usize,
    },
}

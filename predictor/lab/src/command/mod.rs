//! The commands `backtest` and `simulate`: flags, text, JSON, CSV and pages.

pub mod columns;

pub mod backtest;

pub mod simulate;

use crate::trace::table::ROWS_MAX;

/// The largest number of rows that a flag accepts: no table has more.
pub const COUNT_MAX: u64 = ROWS_MAX as u64;
/// The largest global batch, in samples.
pub const GLOBAL_BATCH_MAX: u64 = 1 << 40;

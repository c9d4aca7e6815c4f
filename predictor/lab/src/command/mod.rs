//! The commands `backtest` and `simulate`: flags, and output as text, JSON, CSV and HTML.

pub mod columns;

pub mod backtest;

pub mod simulate;

#[cfg(test)]
mod fuzz;

use crate::trace::table::ROWS_MAX;

/// Largest number of rows that a flag accepts, equal to the maximum of a table.
pub const COUNT_MAX: u64 = ROWS_MAX as u64;
/// Largest global batch in samples.
pub const GLOBAL_BATCH_MAX: u64 = 1 << 40;

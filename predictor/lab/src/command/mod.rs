//! The commands `backtest` and `simulate`: flags, and output as text, JSON, CSV and HTML.

pub mod columns;

pub mod backtest;

pub mod simulate;

#[cfg(test)]
mod fuzz;

/// Largest global batch in samples.
pub const GLOBAL_BATCH_MAX: u64 = 1 << 40;

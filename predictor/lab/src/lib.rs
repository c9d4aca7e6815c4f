//! The lab: judges forecasters and allocation policies offline. The product never depends on it, except for the commands of its binary.
//!
//! - [`batch`]: models that are fitted to a range of history
//! - [`backtest`]: how accurate forecasts would have been on recorded data
//! - [`simulate`]: how long steps would have taken under each policy
//! - [`table`]: recorded tables in files
//! - [`command`]: the commands `evenstep-predictor backtest` and `simulate`

pub mod batch;

pub mod backtest;

pub mod simulate;

pub mod table;

pub mod command;

//! The lab: judges forecasters and allocation policies offline. The product never depends on it, except for the commands of its binary.
//!
//! - [`batch`]: models that are fitted to a range of history
//! - [`backtest`]: how accurate forecasts would have been on recorded data
//! - [`simulate`]: how long steps would have taken under each policy
//! - [`trace`]: recorded traces, from tables in files and from stores
//! - [`command`]: the commands `evenstep-predictor backtest` and `simulate`

pub mod batch;

pub mod backtest;

pub mod simulate;

pub mod trace;

pub mod command;

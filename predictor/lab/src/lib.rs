//! Offline evaluation of forecasters and allocation policies. Product crates do not depend on this crate,
//! except for the commands of the binary.
//!
//! - [`backtest`]: accuracy of forecasts on recorded data
//! - [`simulate`]: step times under each policy
//! - [`trace`]: recorded traces, from tables in files and from stores
//! - [`command`]: the commands `evenstep-predictor backtest` and `simulate`

pub mod backtest;

pub mod simulate;

pub mod trace;

pub mod command;

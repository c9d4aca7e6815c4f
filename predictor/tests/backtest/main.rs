//! `evenstep-predictor backtest` as a process, on small tables.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod support;

mod outputs;

mod tables;

mod refusals;

mod identification;

mod stored;

//! The commands that need no service, `evenstep-predictor backtest`, `simulate`, `plan` and `store`, run as
//! processes on small tables, profiles and stores.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod support;

mod outputs;

mod tables;

mod refusals;

mod alignment;

mod stored;

mod simulate;

mod plan;

#[path = "../../burst/src/planner/tests/vgg16_table.rs"]
mod vgg16_table;

mod store;

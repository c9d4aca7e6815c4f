//! System tests: predictor, agent and trainer as separate processes, as in production.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod training;

mod outages;
mod rolling;

mod membership;

mod learning_rate;
mod losses;

mod background;
mod elastic;
mod hedged;

mod delivery;
mod tls;
mod tokens;

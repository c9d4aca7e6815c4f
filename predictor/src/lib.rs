//! The predictor service: receives telemetry and serves forecasts and batch allocations over HTTP.
//!
//! Modules, in the order in which a request passes through them:
//! - [`http`] parses requests.
//! - [`jobs`] holds the state of each job in memory and calls the pure core.
//! - `evenstep_store` makes changes durable before a response is sent.
//!
//! [`top`] shows running jobs in a terminal, [`report`] summarizes a job. `evenstep-burst` computes burst-parallel plans, `evenstep-lab`
//! runs backtests and simulations.
//!
//! Invariants:
//! - Only `evenstep_store` uses sqlx.
//! - Only [`http`] uses status codes.
//! - No request handler fits a model.
//! - An allocation is durable before it is returned, and never changes after.
//! - Every queue, body and batch is bounded.

pub mod access;

mod amount;

pub mod config;

mod client_tls;

pub mod http;

pub mod jobs;

mod long;

mod number_format;

pub mod retention;

pub mod app;

pub mod clock;

pub mod metrics;

pub mod top;

pub mod report;

pub mod webhook;

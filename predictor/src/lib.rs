//! The predictor: telemetry in, forecasts and batch allocations out, over HTTP.
//!
//! Modules follow the way of the data: [`http`] takes requests apart, [`jobs`] keeps the hot state of each job and asks
//! the pure core, `evenstep_store` makes things durable before an answer leaves. [`top`] shows running jobs in a terminal. Burst-parallel plans are made by
//! `evenstep-burst`, backtests and simulations by `evenstep-lab`.
//!
//! Invariants: only `evenstep_store` names sqlx; only [`http`] knows status codes; no handler fits a model; an allocation is
//! durable before it is answered and never changes after; every queue, body and batch has a bound.

pub mod config;

pub mod http;

pub mod jobs;

pub mod retention;

pub mod app;

pub mod clock;

pub mod metrics;

pub mod top;

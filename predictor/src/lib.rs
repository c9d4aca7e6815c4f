//! The predictor: telemetry in, forecasts and batch allocations out, over HTTP.
//!
//! Modules follow the way of the data: [`http`] takes requests apart, [`book`] keeps the hot state of each job and asks
//! the pure core, `evenstep_store` makes things durable before an answer leaves. Beside the service, [`backtest`] judges forecasts
//! on what was recorded, and [`simulate`] ways of sharing out the batch; [`offline`] is what the two have in common. [`burst`]
//! answers how many GPUs each layer of a model should get, over HTTP and on the command line ([`plan_command`]). [`store_command`]
//! looks after a store: checks, exports, moves and backs it up; [`top`] shows jobs as they run in a terminal.
//!
//! Invariants: only `evenstep_store` names sqlx; only [`http`] knows status codes; no handler fits a model; an allocation is
//! durable before it is answered and never changes after; every queue, body and batch has a bound.

pub mod config;

pub mod http;

pub mod book;

pub mod retention;

pub mod app;

pub mod clock;

pub mod metrics;

pub mod offline;

pub mod backtest;

pub mod simulate;

pub mod burst;

pub mod plan_command;

pub mod store_command;

pub mod top;

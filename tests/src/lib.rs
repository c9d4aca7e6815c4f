//! System tests of evenstep: real processes, real servers, real training.
//!
//! This crate is the support code. The tests are under `tests/system`, and the tests of the predictor alone
//! under `predictor/tests`. Every process has a free port and a separate folder, is awaited until it
//! responds, and ends with the test that started it.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking, in its helpers too"
)]

pub mod binaries;

pub mod wait;

pub mod process;

pub mod gate;

pub mod certificates;

pub mod client;

pub mod events;

pub mod postgres;

pub mod store;

pub mod predictor;

pub mod agent;

pub mod browser;

pub mod training;

pub mod prometheus;

pub use browser::Browser;
pub use client::{Client, Reply};
pub use events::{Event, Events};
pub use gate::Gate;
pub use postgres::{Database, Postgres};
pub use predictor::Predictor;
pub use prometheus::Prometheus;
pub use store::Store;

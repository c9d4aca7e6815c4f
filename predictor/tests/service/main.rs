//! The contract of the service, over HTTP, with the real binary and a real store.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod store_file;
mod support;

mod allocation;
mod attempts;
mod background;
mod contract;
mod even;
mod hedge;

mod races;
mod sharing;

mod laws;
mod learning;
mod learning_rate;

mod membership;

mod leases;

mod memory;

mod refusals;

mod telemetry;
mod tls;

mod admission;

mod connections;

mod restart;
mod unreadable;

mod loads;

mod models;

mod retention;

mod metrics;

mod live;

mod views;

mod top;

mod crashes;

mod command;

mod openapi;

mod page;

mod access;
mod browsers;

mod limits;
mod shares;

mod plan;

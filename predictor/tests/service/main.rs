//! The contract of the service, over HTTP, against the real binary on a real store.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod support;

mod contract;

mod races;

mod laws;

mod membership;

mod leases;

mod refusals;

mod telemetry;

mod restart;

mod models;

mod crashes;

mod command;

mod openapi;

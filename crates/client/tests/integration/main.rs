//! Tests of the client against servers with failures.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod connection;
mod failover;
mod support;

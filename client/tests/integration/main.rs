//! Tests of the client against servers with failures.

mod connection;
mod failover;
mod support;

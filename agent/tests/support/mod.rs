//! Test support: a telemetry receiver with configurable behaviour, the real agent as a process, and promtool.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod agent;
pub mod promtool;
pub mod receiver;

//! A receiver of telemetry that can be told how to behave, the real agent as a process, and Prometheus's own checker.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod agent;
pub mod promtool;
pub mod receiver;

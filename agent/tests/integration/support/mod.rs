//! Test support: a telemetry receiver with configurable behaviour, the real agent as a process,
//! a driver that hangs, and promtool.

pub mod agent;
pub mod nvml;
pub mod promtool;
pub mod receiver;

//! A receiver of telemetry that can be told how to behave, and the real agent as a process.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod agent;
pub mod receiver;

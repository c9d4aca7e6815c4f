//! Tests of the agent as a program, and of its library.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod cgroup;
mod delivery;
mod disk;
mod gpus;
mod local;
mod metrics;
mod support;

//! Tests of the agent as a program, and of its library.

mod boundary_latency;
mod delivery;
mod disk;
mod gpus;
mod local;
mod metrics;
mod support;

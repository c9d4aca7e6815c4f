//! Tests of the trainer's programs and experiments with real training.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod burst;
mod burst_command;
mod gaps;
mod gradients;
mod launch;
mod report;

//! Tests of the trainer's programs and experiments with real training.

mod burst;
mod burst_command;
mod gaps;
mod gradients;
mod launch;
mod report;

//! Tests of the core's public functions against independent solutions.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod allocate_exact;
mod curve_closed_loop;
mod gain;
mod harm;
mod regimes;
mod slow;
mod wide;
mod world;

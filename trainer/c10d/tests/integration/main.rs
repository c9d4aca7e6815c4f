//! Tests of c10d with real process groups, and with a driver that a test imitates.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod cuda;
mod ranks;

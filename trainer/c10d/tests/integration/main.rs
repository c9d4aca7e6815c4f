//! Tests of c10d with real process groups, and with a driver that a test imitates.

mod cuda;
mod ranks;

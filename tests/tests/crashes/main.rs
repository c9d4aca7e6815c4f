//! What was answered and acknowledged outlives whatever dies: `kill -9` under load, full disks, cut connections.
//!
//! `load` asks as ranks and agents do, and writes what it was told into a `ledger`; `audit` holds the predictor and its store
//! to that. The tests are about what happens meanwhile.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod audit;
mod ledger;
mod load;

mod disk;
mod service;

mod failover;
mod kills;

mod disks;
mod postgres;

//! Durability tests: responses and acknowledged data survive `kill -9` under load, full
//! disks, cut and slow links, backups and upgrades.
//!
//! `load` sends requests like ranks and agents do, and records the responses in a `ledger`. `audit` compares
//! the predictor and its store with the ledger. The tests inject the faults.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod audit;
mod ledger;
mod load;

mod disk;
mod service;

mod failover;
mod kills;

mod disks;
mod links;
mod postgres;

mod backups;
mod versions;

#![doc = include_str!("../README.md")]

mod arm;
pub mod ask;
pub mod checkpoint;
pub mod cli;
pub mod collective;
pub mod compute;
pub mod contend;
pub mod data;
mod drivers;
pub mod figures;
mod identity;
pub mod launch;
pub mod model;
mod narrator;
pub mod optimizer;
mod output;
pub mod pace;
pub mod pin;
pub mod plan;
mod planner;
pub mod record;
pub mod report;
mod sample_log;
mod setup;
pub mod store;
pub mod worker;

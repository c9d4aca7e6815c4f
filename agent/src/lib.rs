#![doc = include_str!("../README.md")]

mod clock;
pub mod config;
pub mod daemon;
pub mod local;
pub mod metrics;
pub mod sampler;
pub mod source;
pub mod sources;
pub mod spool;
pub mod uplink;
pub mod watch;

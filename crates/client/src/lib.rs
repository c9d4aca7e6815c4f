#![doc = include_str!("../README.md")]

pub mod backlog;
mod backoff;
mod builder;
mod client;
mod clock;
mod config;
mod connection;
mod error;
mod event;
pub mod failover;
pub mod http;
mod prefetch;
mod recovery;
mod registration;
pub mod servers;
mod tls;
mod token;
mod unix;

pub use backlog::{Backlog, BacklogLimits};
pub use backoff::Backoff;
pub use builder::ConnectionBuilder;
pub use client::{Client, Timed};
pub use clock::{Clock, SystemClock};
pub use config::ClientConfig;
pub use connection::{Allocated, Connection, Reconnect};
pub use error::{Error, ErrorKind, Operation};
pub use evenstep_rules::{Mismatch, Requested, Share, shares};
pub use evenstep_tls::InvalidFile;
pub use event::Event;
pub use prefetch::Prefetcher;
pub use registration::{Registration, RunStart};
pub use servers::Servers;
pub use tls::{ClientTls, ClientTlsFiles};
pub use token::TokenSource;

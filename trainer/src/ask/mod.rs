//! Asking the predictor: the HTTP client, the line that survives its silence, and asking ahead.

mod ahead;
mod backlog;
mod client;
mod link;
mod registration;

pub use ahead::AheadAsker;
pub use backlog::Backlog;
pub use client::{AskError, Client, Timed};
pub use link::{Answered, Link};
pub use registration::{Begin, Registration};

//! The plan of an iteration: which rank computes which samples. It is the same on all ranks.
//!
//! The trainer in Rust and, through `evenstep._native`, the Python package use these rules.
//!
//! - [`Plan`]: shares by rank (`split`), and a [`Tail`] if part of the iteration is claimed (`claimable`)
//! - [`apportion`](fn@apportion): exact proportions in whole quanta
//! - `response`: plans from the predictor's responses
//! - [`Rate`]: the plan's multiplier of the learning rate
//! - [`Shuffle`]: the order of an epoch
//! - [`Cut`]: samples of unequal cost to parts of given weights, and to passes
//! - `slots`, `json`: encodings of a plan for the other ranks, and for checkpoints

mod apportion;
mod claimable;
mod cut;
mod json;
mod rate;
mod response;
mod shuffle;
mod slots;
mod split;
mod tail;

pub use apportion::apportion;
pub use cut::{COST_MAX, COST_MIN, Cut, CutError, LENGTH_MAX, Part, PassRules};
pub use evenstep_client::Share;
pub use json::InvalidPlan;
pub use rate::{Rate, SLOTS as RATE_SLOTS};
pub use response::{PlanError, checked};
pub use shuffle::Shuffle;
pub use split::Plan;
pub use tail::{Claimant, Pool, SharedTail, Tail, chunks_max};

/// The largest global batch: integers up to this value are exact as 32-bit floats, among the gradients.
pub const GLOBAL_BATCH_MAX: u64 = 1 << 24;

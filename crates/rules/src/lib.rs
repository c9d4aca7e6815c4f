//! Rules by which all ranks decide alike: the trainer in Rust and, through `evenstep._native`, the Python package.
//!
//! The rules are deterministic: no I/O, no clock, no random numbers. Above all they give the plan of an iteration:
//! which rank computes which samples. It is the same on all ranks.
//!
//! - [`Plan`]: shares by rank (`split`), and a [`Tail`] if part of the iteration is claimed (`claimable`)
//! - [`shares`](fn@shares), `response`: shares and plans from the predictor's responses, checked against the request
//! - [`apportion`](fn@apportion): exact proportions in whole quanta
//! - [`chunks`](fn@chunks), [`Counter`], [`ClaimPolicy`]: the chunks of a tail, claims, and the decision to leave the rest
//! - [`Rate`]: the plan's multiplier of the learning rate; [`learning_rate`]: the rules that it follows
//! - [`Shuffle`]: the order of an epoch
//! - [`Cut`]: samples of unequal cost to parts of given weights, and to passes
//! - [`gate`]: when and how much background work may run next to a job
//! - `slots`, `json`: encodings of a plan for the other ranks, and for checkpoints

mod apportion;
mod chunks;
mod claim;
mod claimable;
mod cut;
pub mod gate;
mod json;
pub mod learning_rate;
mod rate;
mod response;
mod shares;
mod shuffle;
mod slots;
mod split;
mod tail;

pub use apportion::apportion;
pub use chunks::{CHUNKS_PER_WORKER_MAX, chunks};
pub use claim::{CLAIM, ClaimPolicy, Counter, LEAVE, Peer};
pub use cut::{COST_MAX, COST_MIN, Cut, CutError, LENGTH_MAX, Part, PassRules};
pub use json::InvalidPlan;
pub use rate::{Rate, SLOTS as RATE_SLOTS};
pub use response::{PlanError, checked};
pub use shares::{InvalidSize, Mismatch, Requested, Share, shares};
pub use shuffle::Shuffle;
pub use split::Plan;
pub use tail::{Claimant, Pool, SharedTail, Tail, chunks_max};

/// The largest global batch: integers up to this value are exact as 32-bit floats, among the gradients.
pub const GLOBAL_BATCH_MAX: u64 = 1 << 24;

//! Who computes which samples of an iteration: the plan in force, the same on all ranks.
//!
//! - [`Plan`]: shares by rank (`split`), and a [`Tail`] if part of the iteration is left to whoever is free (`claimable`)
//! - `answer`: plans from the predictor's responses
//! - [`Planner`]: which plan is in force in an iteration
//! - [`Rate`]: what a plan multiplies the learning rate by
//! - `slots`: how a plan travels to the other ranks

mod answer;
mod claimable;
mod learning_rate;
mod planner;
mod policy;
mod slots;
mod split;
mod tail;

pub use answer::PlanError;
pub use evenstep_client::Share;
pub use learning_rate::{Rate, SLOTS as RATE_SLOTS};
pub use planner::{Planned, Planner};
pub use policy::{AskMode, Policy};
pub use split::Plan;
pub use tail::{Pool, SharedTail, Tail};

/// The largest global batch: whole numbers up to here travel exactly among 32-bit gradients.
pub const GLOBAL_BATCH_MAX: u64 = 1 << 24;

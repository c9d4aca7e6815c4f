//! The plan of an iteration: which rank computes which samples. It is the same on all ranks.
//!
//! - [`Plan`]: shares by rank (`split`), and a [`Tail`] if part of the iteration is claimed (`claimable`)
//! - `answer`: plans from the predictor's responses
//! - [`Planner`]: the plan in force in an iteration
//! - [`Rate`]: the plan's multiplier of the learning rate
//! - `slots`: encoding of a plan for the other ranks

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
pub use policy::{Policy, RequestMode};
pub use split::Plan;
pub use tail::{Pool, SharedTail, Tail};

/// The largest global batch: integers up to this value are exact as 32-bit floats, among the gradients.
pub const GLOBAL_BATCH_MAX: u64 = 1 << 24;

//! The plan of an iteration: which rank computes which samples. It is the same on all ranks.
//!
//! - [`Plan`], [`Rate`] and the rules of resizing: crate `evenstep-rules`, which the Python package uses too
//! - [`Planner`]: the plan in force in an iteration

mod planner;
mod policy;

pub use evenstep_rules::{
    GLOBAL_BATCH_MAX, Plan, PlanError, Pool, RATE_SLOTS, Rate, Share, SharedTail, Tail,
};
pub use planner::{Planned, Planner};
pub use policy::Policy;

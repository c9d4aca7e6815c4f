//! What is known of one job, and the two questions it is there for: [`JobState::observe`] learns from reports, and
//! [`JobState::decide`] plans an iteration.
//!
//! The service restores a [`JobState`] from its store, keeps it between requests and stores what comes out of it. `decide` changes
//! nothing: its [`Decided`] becomes part of the state with [`JobState::apply`], so an iteration that cannot be planned leaves no trace.
//!
//! Files in reading order:
//! - `report`: what a report says of speed, drivers and gradients
//! - `worker`: what is learned of one worker beside the forecast of its speed
//! - `models`: the models of all workers of a job, and what they learn from
//! - `training`: what their networks are fitted on
//! - `stored`: their form in the store, and its version
//! - `learning_rate`: the learning-rate rule of a job and its instruction
//! - `state`: job options, members, models and the plan in force
//! - `bounds`: the floor and the caps of a worker
//! - `profile`: the iterations at the start that measure batch curves
//! - `observe`: learns from reports
//! - `straggler`: whether a worker is slow for long, compared with its peers
//! - `reason`: decisions and stragglers as text
//! - `tail`: the shared tail of an iteration
//! - `background`: how much background work an iteration can carry
//! - `decide`: plans an iteration

mod background;

mod bounds;

mod decide;

mod learning_rate;

mod models;

mod observe;

mod profile;

mod reason;

mod report;

mod state;

mod stored;

mod straggler;

mod tail;

mod training;

mod worker;

#[cfg(test)]
mod tests;

pub use bounds::Bounds;
pub use decide::{Decided, Undecided};
pub use learning_rate::{controller, rule};
pub use models::Models;
pub use observe::Skipped;
pub use report::inputs;
pub use state::{JobState, Restored, WorkerState};
pub use stored::{BadModels, FORMAT, read_device_model, read_models, write_device_model, write_models};
pub use training::trainings;
pub use worker::WorkerModel;

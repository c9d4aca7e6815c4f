//! The state of one job, with two operations: [`JobState::observe`] learns from reports, and
//! [`JobState::decide`] plans an iteration.
//!
//! The service restores a [`JobState`] from its store, keeps it between requests and stores its results.
//! `decide` does not change the state. [`JobState::apply`] applies its [`PlannedIteration`], so an iteration that
//! cannot be planned has no effect.
//!
//! The iterations of allocations and reports are positions here; see [`crate::attempts`]. Only the learning-rate rules use the
//! iterations of clients.
//!
//! Files in reading order:
//! - `report`: speed, drivers and gradients in a report
//! - `worker`: the models of one worker, except its forecast
//! - `plans`: facts about planned iterations that their reports do not contain
//! - `open`: iterations whose reports are not complete yet
//! - `models`: the models of all workers of a job
//! - `training`: the training sets of their networks
//! - `stored`: their format in the store, and its version
//! - `learning_rate`: the learning-rate rule of a job and its instruction
//! - `state`: job options, members, models and the current plan
//! - `configured`: the bounds that the job, the worker and an operator set, and their checks
//! - `bounds`: the floor and the caps of a worker
//! - `known`: the state and the models of each live worker
//! - `admission`: changes that would stop a job
//! - `even_time`: the time that an iteration would have taken with even shares
//! - `probe`: the iterations in which shares vary on purpose
//! - `returns`: returns of a run to an earlier iteration
//! - `progress`: the iterations that a run finished while the predictor was unreachable
//! - `observe`: learns from reports
//! - `others`: compares the workers of an iteration, to find those that are slow
//! - `straggler`: the stragglers of a job
//! - `compare`: compares an iteration with planned shares, with even ones, and without its tail
//! - `balance`: gains and losses of planned shares and of tails, which decide whether they are used
//! - `work`: work that grows or shrinks for all workers, which makes none of them slow
//! - `reason`: decisions and stragglers as text
//! - `tail`: the shared tail of an iteration
//! - `background`: the background work that an iteration can carry
//! - `decide`: plans an iteration

mod admission;

mod background;

mod bounds;

mod compare;

mod configured;

mod decide;

mod even_time;
mod idle;

mod known;

mod learning_rate;

mod models;

mod observe;

mod open;

mod others;

mod plans;

mod probe;

mod reason;

mod returns;

mod progress;

mod report;

mod state;

mod stored;

mod straggler;

mod tail;

mod training;

mod work;

mod worker;

mod balance;

#[cfg(test)]
mod laws;
#[cfg(test)]
mod network_tests;
#[cfg(test)]
mod open_tests;

#[cfg(test)]
mod tests;

#[cfg(test)]
mod bounds_tests;

#[cfg(test)]
mod admission_tests;

#[cfg(test)]
mod units;

#[cfg(test)]
mod fuzz;

pub use admission::{Binding, Stops};
pub use balance::{Balance, Compared, TailBalance, Used};
pub use bounds::Bounds;
pub use configured::{Contradiction, Setting, check_spec};
pub use decide::{DecideError, PlannedIteration};
pub use even_time::EvenTime;
pub use learning_rate::{controller, rule};
pub use models::Models;
pub use observe::{Observed, Skipped};
pub use report::inputs;
pub use returns::LOOK_AHEAD_MAX;
pub use state::{JOINS_MAX, JobState, Restored, WorkerState, global_batch};
pub use stored::{
    FORMAT, ModelFormatError, check_part, read_device_model, read_learning_rate, read_models,
    write_device_model, write_models,
};
pub use training::training;
pub use worker::WorkerModel;

//! Learning rates for a changing global batch: the factor of the client's schedule in each iteration.
//!
//! The [rules](evenstep_rules::learning_rate) are in another crate, because a training loop follows them without a
//! predictor too. A jump to the scale of the batch is harmful with momentum, because the buffer still contains the noise of the small batches
//! ([`noise`]).
//!
//! - [`controller`]: instructions by the client's iterations
//! - [`adascale`]: gradient noise, and the gain that it allows
//! - [`noise`]: effect of a ramp on the noise of an update, in closed form

pub mod adascale;

pub mod controller;

pub mod noise;

mod error;

pub use adascale::{GradientNorms, LocalNorm};
pub use controller::{Controller, Instruction, PendingInstruction};
pub use error::{KEPT_INSTRUCTIONS_MAX, LearningRateError};

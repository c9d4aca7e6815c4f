//! Learning rates for a changing global batch: the factor of the client's schedule in each iteration.
//!
//! With `B_0` the global batch that the client's schedule was made for and `k = B / B_0` the scale:
//!
//! | rule | multiplier | from |
//! |---|---|---|
//! | [`Rule::None`] | 1 | |
//! | [`Rule::Linear`] | `k` at once | Goyal et al. 2017 |
//! | [`Rule::Sqrt`] | `sqrt(k)` at once (Adam) | Krizhevsky 2014 |
//! | [`Rule::DynamicSgd`] | increases linearly to `k`, decreases to `k` at once | Lin et al. 2019, arXiv 1904.12043 |
//! | [`Rule::Legw`] | `sqrt(k)`, after a warm-up of `k` times as many epochs | You et al. 2019 |
//! | [`Rule::AdaScale`] | the gain computed from the gradient noise, 1 to `k` | Johnson et al. 2020 |
//!
//! A jump to `k` is harmful with momentum, because the buffer still contains the noise of the small batches
//! ([`noise`]).
//!
//! - [`controller`]: instructions by the client's iterations
//! - [`ramp`]: a linear change of the multiplier
//! - [`adascale`]: gradient noise, and the gain that it allows
//! - [`noise`]: effect of a ramp on the noise of an update, in closed form

pub mod adascale;

pub mod controller;

pub mod noise;

pub mod ramp;

mod error;

mod rule;

pub use adascale::{GradientNorms, LocalNorm};
pub use controller::{Controller, Instruction, PendingInstruction};
pub use error::{KEPT_INSTRUCTIONS_MAX, LearningRateError};
pub use ramp::Ramp;
pub use rule::{Change, RampLength, Rule};

//! The learning rate when the global batch changes: what a client multiplies its schedule by, iteration by iteration.
//!
//! With `B_0` the global batch that the client's schedule was made for and `k = B / B_0` the scale:
//!
//! | rule | multiplier | from |
//! |---|---|---|
//! | [`Rule::None`] | 1 | |
//! | [`Rule::Linear`] | `k` at once | Goyal et al. 2017 |
//! | [`Rule::Sqrt`] | `sqrt(k)` at once (Adam) | Krizhevsky 2014 |
//! | [`Rule::DynamicSgd`] | to `k` in a straight line when it grows, at once when it shrinks | Lin et al. 2019, arXiv 1904.12043 |
//! | [`Rule::Legw`] | `sqrt(k)`, after a warm-up of `k` times as many epochs | You et al. 2019 |
//! | [`Rule::AdaScale`] | the gain that the noise of the gradients allows, 1 to `k` | Johnson et al. 2020 |
//!
//! Why a jump to `k` hurts under momentum: the buffer still holds the noise of the small batches ([`noise`]).
//!
//! - [`controller`]: instructions by the client's iterations
//! - [`ramp`]: a straight line of multipliers
//! - [`adascale`]: noise of gradients, and the gain that it allows
//! - [`noise`]: what a ramp does to the noise of an update, in closed form

pub mod adascale;

pub mod controller;

pub mod noise;

pub mod ramp;

mod error;

mod rule;

pub use adascale::{GradientNorms, LocalNorm};
pub use controller::{Controller, Instruction, MomentumForm, Upcoming};
pub use error::{LearningRateError, REMEMBERED_MAX};
pub use ramp::Ramp;
pub use rule::{Change, RampLength, Rule, legw_multiplier};

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
//! - [`goodput`]: throughput that counts, by the noise of the gradients

pub mod adascale;

pub mod controller;

pub mod goodput;

pub mod noise;

pub mod ramp;

mod rule;

pub use adascale::{GradientNorms, LocalNorm};
pub use controller::{Controller, Instruction, MomentumForm, Upcoming};
pub use ramp::Ramp;
pub use rule::{Change, RampLength, Rule, legw_multiplier};

/// Why there is no instruction.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LearningRateError {
    /// A global batch without samples.
    #[error("{which} 0: it must hold at least 1 sample")]
    NoSamples {
        /// Which batch.
        which: &'static str,
    },
    /// A setting out of its range.
    #[error("{name} {value}: it must be {range}")]
    Setting {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: f64,
        /// What it must be.
        range: &'static str,
    },
    /// An iteration before one that was asked for already, and not asked for itself.
    #[error("iteration {iteration}: iterations must rise, and {newest} was asked for already")]
    Backwards {
        /// The iteration.
        iteration: u64,
        /// The newest that was asked for.
        newest: u64,
    },
    /// An iteration that was asked for with another global batch.
    #[error("iteration {iteration}: it was asked for with a global batch of {before}, now with {now}")]
    BatchChanged {
        /// The iteration.
        iteration: u64,
        /// Its global batch.
        before: u64,
        /// The one it is asked for with now.
        now: u64,
    },
    /// So far back that it is forgotten.
    #[error("iteration {iteration}: only the latest {kept} that were asked for are remembered", kept = controller::REMEMBERED_MAX)]
    Forgotten {
        /// The iteration.
        iteration: u64,
    },
    /// Gradients for a rule that takes none.
    #[error("gradients: the rule is not adascale, and no other takes them")]
    NoGradientsTaken,
    /// Gradients of an iteration at or before the newest that was learned from.
    #[error("gradients of iteration {iteration}: those of {newest} were taken already")]
    GradientsBackwards {
        /// The iteration.
        iteration: u64,
        /// The newest that was learned from.
        newest: u64,
    },
    /// Too few local batches to tell signal from noise.
    #[error("gradients of {count} local batches: at least 2 are needed to tell signal from noise")]
    TooFewGradients {
        /// How many.
        count: usize,
    },
    /// A squared norm that is none.
    #[error("squared gradient norm {value}: it must be finite and not negative")]
    Norm {
        /// What was given.
        value: f64,
    },
}

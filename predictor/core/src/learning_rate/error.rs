//! Why there is no instruction.

/// Maximum number of remembered instructions. At least the number of iterations that can be requested ahead.
pub const REMEMBERED_MAX: usize = 128;

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

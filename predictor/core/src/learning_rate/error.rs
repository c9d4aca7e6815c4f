//! Errors of the learning-rate controller.

use evenstep_rules::learning_rate::InvalidRule;

/// Maximum number of remembered instructions. At least the number of iterations that can be requested ahead.
pub const KEPT_INSTRUCTIONS_MAX: usize = 128;

/// Maximum of a squared norm. Larger ones come from a training that diverges, and would overflow the averages.
pub(super) const NORM_MAX: f64 = 1e100;

/// The reason why there is no instruction.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LearningRateError {
    /// A setting of the rule is out of range.
    #[error(transparent)]
    Rule(#[from] InvalidRule),
    /// A batch without samples.
    #[error("{which} is 0; it must be at least 1")]
    NoSamples {
        /// Name of the batch.
        which: &'static str,
    },
    /// Gradients for a rule that takes none.
    #[error("gradients are accepted only with the learning-rate rule adascale; omit them")]
    GradientsNotUsed,
    /// Gradients of an iteration that is not newer than the latest processed one.
    #[error("gradients of iteration {iteration} are late: iteration {newest} was processed already")]
    GradientsOutOfOrder {
        /// The iteration.
        iteration: u64,
        /// The latest processed iteration.
        newest: u64,
    },
    /// Too few local batches to estimate the noise.
    #[error("gradients of {count} local batches: at least 2 are required to estimate the noise")]
    TooFewGradients {
        /// Number of local batches.
        count: usize,
    },
    /// A squared norm that is out of its range.
    #[error("squared gradient norm {value} is invalid; it must be 0 to {NORM_MAX:e}")]
    Norm {
        /// The given value.
        value: f64,
    },
}

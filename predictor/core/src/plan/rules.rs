//! Rules of a job for its plans.

/// The default of [`Rules::min_gain`].
pub const MIN_GAIN: f64 = 0.02;
/// Maximum ratio of a worker's batch to the largest batch it was measured at. An even share is always allowed. Beyond
/// this bound, its speed is extrapolated.
pub const MAX_BATCH_GROWTH: f64 = 2.0;

/// Allowed sizes of local batches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Sizes {
    /// Any multiple of the quantum.
    #[default]
    Any,
    /// Only these sizes, in ascending order.
    Allowed(Vec<u64>),
    /// Multiples of the quantum, with at most this number of distinct sizes in an iteration.
    Distinct(usize),
}

/// Rules of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Global batch in samples.
    pub global_batch: u64,
    /// Batches are multiples of this. If the global batch is not a multiple, one worker also gets the
    /// remainder. [`Sizes::Allowed`] replaces it.
    pub quantum: u64,
    /// Allowed sizes of local batches.
    pub sizes: Sizes,
    /// Minimum gain, as a share of the expected step time, 0 to 1. The plan in force is kept if a new plan
    /// would gain less, unless even shares are as fast.
    pub min_gain: f64,
    /// Mean number of iterations for which a plan holds, at least 1.
    pub iterations: f64,
}

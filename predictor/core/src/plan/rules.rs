//! The rules of a job that a plan keeps.

/// The default of [`Rules::min_gain`].
pub const MIN_GAIN: f64 = 0.02;
/// The default of [`Rules::max_batch_growth`].
pub const MAX_BATCH_GROWTH: f64 = 2.0;

/// Which sizes local batches may have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Sizes {
    /// Every multiple of the quantum.
    #[default]
    Any,
    /// These only, rising.
    Allowed(Vec<u64>),
    /// Multiples of the quantum, at most so many distinct ones in an iteration.
    Distinct(usize),
}

/// What a plan minimises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Objective {
    /// The expected time of the slowest worker, over the recent errors of the forecasts.
    #[default]
    ExpectedMaximum,
    /// The time of the slowest worker by the forecasts, as if they were certain: to compare with.
    Maximum,
}

/// The rules of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Samples to share out.
    pub global_batch: u64,
    /// Every batch is a multiple of this (but one, where the global batch is none).
    pub quantum: u64,
    /// Which sizes there may be.
    pub sizes: Sizes,
    /// What is minimised.
    pub objective: Objective,
    /// Hold the plan in force while a new plan would shorten the expected step by less than this share, 0 to 1.
    pub min_gain: f64,
    /// No worker gets more than this many times the largest batch it was measured at, or an even share if that is more; at
    /// least 1.
    pub max_batch_growth: f64,
}

//! The learned form of a worker's curve.

use serde::{Deserialize, Serialize};

/// The learned form of a worker's curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum LearnedForm {
    /// No form is proven, so time is assumed to be proportional to the batch.
    ///
    /// This is the case while the worker ran at one size only, or at similar sizes: a fixed cost and a cost
    /// per sample cannot be distinguished then.
    Unproven,
    /// Sizes differed enough, and this form is proven.
    Identified {
        /// The form with the smallest forecast errors.
        kind: Kind,
        /// Share of the time at the reference batch (the first batch observed) that does not depend on the
        /// batch size.
        fixed_share: f64,
        /// Samples up to which time is flat: the saturation point, or the size of a tile; `None` if time grows from the
        /// first sample.
        saturation: Option<u64>,
    },
}

/// Form of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Only a cost per sample.
    Proportional,
    /// A fixed cost and a cost per sample.
    Linear,
    /// Flat up to the saturation point, then linear.
    Saturating,
    /// A staircase of tiles: a device computes a tile in the same time, whether it is full or not.
    Staircase,
}

/// A value that is not known exactly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Uncertain {
    /// Its mean.
    pub mean: f64,
    /// Its standard deviation.
    pub deviation: f64,
}

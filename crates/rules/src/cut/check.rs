//! Rules of the passes and of the input of a cut.

use crate::GLOBAL_BATCH_MAX;

/// The smallest cost of a sample.
pub const COST_MIN: f64 = 1e-30;

/// The largest cost of a sample.
pub const COST_MAX: f64 = 1e30;

/// The largest length of a sample in tokens: sums over an iteration are below 2^63.
pub const LENGTH_MAX: u64 = 1 << 38;

/// The rules of the passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassRules<'a> {
    /// Length of each sample in tokens, at most [`LENGTH_MAX`]. `max_tokens` and `is_padded` require it.
    pub lengths: Option<&'a [u64]>,
    /// Maximum number of tokens of one pass; `None` for no limit.
    pub max_tokens: Option<u64>,
    /// Whether all samples of a pass are padded to its longest: a pass then has `count * longest` tokens. Otherwise the
    /// samples are concatenated, and a pass has the sum of their lengths.
    pub is_padded: bool,
    /// Minimum number of samples of a pass, at least 1.
    pub least: usize,
    /// Minimum number of passes of each part with samples, at least 1. Without `max_tokens`, the number of passes.
    pub passes: usize,
    /// Whether all parts with samples have the same number of passes.
    pub is_equal: bool,
}

impl Default for PassRules<'_> {
    /// One pass for each part with samples.
    fn default() -> Self {
        Self { lengths: None, max_tokens: None, is_padded: false, least: 1, passes: 1, is_equal: true }
    }
}

/// An iteration cannot be cut because an argument breaks its rule.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CutError {
    /// More samples than an iteration can have.
    #[error("{samples} samples: an iteration can have at most {GLOBAL_BATCH_MAX}")]
    Samples {
        /// Number of costs.
        samples: usize,
    },
    /// A cost is not a number in the range.
    #[error("cost {cost} of sample {position}: must be a number from {COST_MIN:e} to {COST_MAX:e}")]
    Cost {
        /// Position of the sample in the iteration.
        position: usize,
        /// Its cost.
        cost: f64,
    },
    /// No weight is positive.
    #[error("none of the {weights} weights is positive; give at least one part a positive weight")]
    Weights {
        /// Number of weights.
        weights: usize,
    },
    /// The number of lengths differs from the number of costs.
    #[error("{lengths} lengths for {samples} costs: each sample must have one length and one cost")]
    Lengths {
        /// Number of lengths.
        lengths: usize,
        /// Number of costs.
        samples: usize,
    },
    /// A limit or padding without lengths.
    #[error("{setting} requires the lengths of the samples")]
    NoLengths {
        /// The setting: `max_tokens` or `padded`.
        setting: &'static str,
    },
    /// A length is out of range.
    #[error("length {length} of sample {position}: must be at most {LENGTH_MAX}")]
    Length {
        /// Position of the sample in the iteration.
        position: usize,
        /// Its length in tokens.
        length: u64,
    },
    /// A sample does not fit into a pass.
    #[error(
        "length {length} of sample {position}: exceeds max_tokens {max_tokens} divided by least {least}; raise \
         max_tokens or shorten the sample"
    )]
    TooLong {
        /// Position of the sample in the iteration.
        position: usize,
        /// Its length in tokens.
        length: u64,
        /// Minimum number of samples of a pass.
        least: usize,
        /// Maximum number of tokens of a pass.
        max_tokens: u64,
    },
    /// A count is out of range.
    #[error("{setting} {value}: must be from 1 to {GLOBAL_BATCH_MAX}")]
    Count {
        /// The setting: `least` or `passes`.
        setting: &'static str,
        /// Its value.
        value: usize,
    },
}

/// Checks the input of a cut.
pub(super) fn check(costs: &[f64], weights: &[u64], rules: &PassRules<'_>) -> Result<(), CutError> {
    let samples = costs.len();
    if samples as u64 > GLOBAL_BATCH_MAX {
        return Err(CutError::Samples { samples });
    }
    let is_usable = |cost: f64| (COST_MIN..=COST_MAX).contains(&cost);
    if let Some(position) = costs.iter().position(|&cost| !is_usable(cost)) {
        return Err(CutError::Cost { position, cost: costs[position] });
    }
    if weights.iter().all(|&weight| weight == 0) {
        return Err(CutError::Weights { weights: weights.len() });
    }
    for (setting, value) in [("least", rules.least), ("passes", rules.passes)] {
        if value == 0 || value as u64 > GLOBAL_BATCH_MAX {
            return Err(CutError::Count { setting, value });
        }
    }
    let Some(lengths) = rules.lengths else {
        let needs = [("max_tokens", rules.max_tokens.is_some()), ("padded", rules.is_padded)];
        return match needs.into_iter().find(|(_, is_set)| *is_set) {
            Some((setting, _)) => Err(CutError::NoLengths { setting }),
            None => Ok(()),
        };
    };
    if lengths.len() != samples {
        return Err(CutError::Lengths { lengths: lengths.len(), samples });
    }
    let (least, max_tokens) = (rules.least, rules.max_tokens.unwrap_or(u64::MAX));
    for (position, &length) in lengths.iter().enumerate() {
        if length > LENGTH_MAX {
            return Err(CutError::Length { position, length });
        }
        if length * least as u64 > max_tokens {
            return Err(CutError::TooLong { position, length, least, max_tokens });
        }
    }
    Ok(())
}

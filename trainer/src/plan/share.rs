//! The samples of one rank.

/// Samples of one rank: `offset .. offset + local_batch` of the iteration's global batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// How many.
    pub local_batch: u64,
    /// Where they begin.
    pub offset: u64,
}

//! Samples that are ready to compute on.

use tch::Tensor;

/// Samples and what is to be predicted of them; the first dimension of both tensors is the sample.
#[derive(Debug)]
pub struct Batch {
    /// `[samples, ..]`.
    pub inputs: Tensor,
    /// `[samples, ..]`.
    pub targets: Tensor,
}

impl Batch {
    /// The number of samples.
    pub fn len(&self) -> i64 {
        self.targets.size().first().copied().unwrap_or(0)
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The samples `start .. start + count`.
    pub fn narrow(&self, start: i64, count: i64) -> Self {
        Self { inputs: self.inputs.narrow(0, start, count), targets: self.targets.narrow(0, start, count) }
    }
}
